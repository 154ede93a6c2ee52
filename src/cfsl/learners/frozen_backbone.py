"""A frozen backbone of any kind, and the nearest class mean on its features.

Features come from a `torch.nn.Module` that was trained elsewhere and does not change. Classes are
running means over all support sets, compared by the cosine: SimpleCIL (Zhou et al., "Revisiting
Class-Incremental Learning with Pre-Trained Models: Generalizability and Adaptivity are All You
Need", 2023) for continual few-shot tasks.

    c_k = mean over the images x of label k, of all support sets, of f(x)
    logit_k(x) = scale * cos(f(x), c_k)

The learner holds hyper-parameters only: `architecture` names a function (package.module:function)
that builds the module, and `arguments` are those it is called with. The weights are in `meta`, as
those of every learner; `backbone_weights` takes them from a module. The module is built anew at
every call, without weights, and run with those of `meta`: so nothing of a task can stay behind in
it.

`from_transformers` returns learner and weights of a model of Hugging Face `transformers` (pip
install cfsl[transformers]).

A backbone that was trained on photographs has seen the classes of SlimageNet64, which are
ImageNet's, test classes included. Its results belong beside those of other pretrained backbones,
not beside learners that saw training classes only: say on the card what it was trained on.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Float32
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from cfsl.errors import LearnerError
from cfsl.learners.base import Meta, State, Support, TaskInfo
from cfsl.learners.metric import Metric, closeness
from cfsl.spec import AcceptsList, FrozenSpec

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Images = Float32[Tensor, "n channels height width"]
_HERE = "cfsl.learners.frozen_backbone"
_ABOUT_FILES = ("architectures", "transformers_version", "_name_or_path", "dtype", "torch_dtype")
"""Entries of a configuration that say where it came from."""


class FrozenBackbone(FrozenSpec):
    """Answers with the nearest class mean, on features of a module that was trained elsewhere."""

    kind: Literal["frozen_backbone"] = "frozen_backbone"
    architecture: str = f"{_HERE}:small_backbone"
    """package.module:function. The module that it returns turns images, n x channels x height x
    width, into features, n x d."""
    arguments: Mapping[str, Any] = {}
    """The arguments of the function, which are JSON values."""
    channels: Annotated[int, Field(ge=1, le=4)] = 3
    """The channels that the module takes; grey images are repeated."""
    side: Annotated[int, Field(ge=1, le=4096)] | None = None
    """The side that images are resized to; None leaves them as they are."""
    mean: Annotated[tuple[float, ...], AcceptsList] = ()
    """It is taken off each channel. Leave it empty if the recipe of the data set has done so, as
    that of SlimageNet64 does."""
    std: Annotated[tuple[float, ...], AcceptsList] = ()
    """Each channel is divided by it after that."""
    metric: Metric = "cosine"
    scale: _Positive = 10.0
    """The scale of the logits. The answer does not depend on it, but the cross-entropy does."""

    needs_loading: ClassVar[bool] = True
    """Packages of a module are imported at its first use, which must not be a guarded one."""

    def init(self, image_shape: tuple[int, int, int], generator: torch.Generator) -> Meta:
        """Draw random weights: a control, and a pattern for the weights of a trained module."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            return backbone_weights(self._built())

    def embed(self, meta: Meta, images: Images) -> Float[Tensor, "n features"]:
        """f(x), each image on its own."""
        with torch.device("meta"):
            module = self._built()

        weights = {**meta["params"], **meta["stats"]}
        wanted = [name for name, _ in chain(module.named_parameters(), module.named_buffers())]
        missing = [name for name in wanted if name not in weights]
        if missing:
            raise LearnerError(
                f"the weights have no '{missing[0]}', which {self.architecture} needs; "
                f"take them from the same module with backbone_weights, or give other arguments"
            )

        features = functional_call(module, weights, (self._prepared(images),), strict=True)
        if not isinstance(features, Tensor) or features.ndim != 2:
            is_tensor = isinstance(features, Tensor)
            found = tuple(features.shape) if is_tensor else type(features).__name__
            raise LearnerError(
                f"{self.architecture} gives {found} for {len(images)} images; "
                f"one row an image is needed"
            )
        return features.float()

    def begin(self, meta: Meta, info: TaskInfo) -> State:
        """Start with sums of no width: the first features tell how wide they are."""
        return {
            "info": info,
            "sums": torch.zeros(info.labels, 0, device=info.device),
            "counts": torch.zeros(info.labels, dtype=torch.int64, device=info.device),
        }

    def observe(self, state: State, support: Support) -> State:
        """Add the features to the sums of their labels."""
        sums = state["sums"]
        sums = sums if sums.shape[1] else sums.new_zeros(len(sums), support.images.shape[1])
        return state | {
            "sums": sums.index_add(0, support.labels, support.images),
            "counts": state["counts"].index_add(0, support.labels, torch.ones_like(support.labels)),
        }

    def predict(
        self, state: State, images: Float[Tensor, "n features"]
    ) -> Float[Tensor, "n labels"]:
        """Compare with the means; a label that was never shown is impossible."""
        counts = state["counts"]
        means = state["sums"] / counts.clamp(min=1)[:, None]
        logits = self.scale * closeness(images, means, self.metric)
        masked: Tensor = logits.masked_fill(counts == 0, float("-inf"))
        return masked

    def _prepared(self, images: Images) -> Images:
        """Bring images to the channels, size and range that the module was trained with."""
        if images.shape[1] == 1 and self.channels > 1:
            images = images.expand(-1, self.channels, -1, -1)

        if self.side is not None and images.shape[2:] != (self.side, self.side):
            images = functional.interpolate(
                images, (self.side, self.side), mode="bilinear", antialias=True
            )

        if self.mean:
            images = images - images.new_tensor(self.mean)[:, None, None]
        if self.std:
            images = images / images.new_tensor(self.std)[:, None, None]
        return images

    def _built(self) -> nn.Module:
        """Build the module, as it is for evaluation."""
        module_name, _, function = self.architecture.partition(":")
        try:
            module = getattr(importlib.import_module(module_name), function)(**self.arguments)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise LearnerError(
                f"{self.architecture} cannot be built with {dict(self.arguments)}: {error}. "
                f"Give architecture as package.module:function, and arguments that it takes"
            ) from error

        if not isinstance(module, nn.Module):
            raise LearnerError(
                f"{self.architecture} returns {type(module).__name__}; a torch.nn.Module is needed"
            )
        return module.eval()


def backbone_weights(module: nn.Module) -> Meta:
    """Return the parameters and buffers of a module, as `meta` has them."""
    return {
        "params": {name: param.detach().clone() for name, param in module.named_parameters()},
        "stats": {name: buffer.detach().clone() for name, buffer in module.named_buffers()},
    }


def small_backbone(channels: int = 3, width: int = 16) -> nn.Module:
    """Return two convolutions and a mean over places: for trying things out."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )


class _Pooled(nn.Module):
    """A model of `transformers`, from images to one vector each."""

    def __init__(self, model: nn.Module) -> None:
        """Wrap a model that takes `pixel_values`."""
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's own pooled output.

        A model without one gives its first token, or the mean over its maps.
        """
        takes_any_size = (
            "interpolate_pos_encoding" in inspect.signature(self.model.forward).parameters
        )
        options = {"interpolate_pos_encoding": True} if takes_any_size else {}
        out = self.model(pixel_values=images, **options)

        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is None:
            hidden = out.last_hidden_state
            pooled = hidden[:, 0] if hidden.ndim == 3 else hidden.mean(dim=(2, 3))
        return pooled.flatten(1)


def transformers_backbone(model_type: str, **config: Any) -> nn.Module:
    """Build a model of `transformers` from its configuration, with random weights."""
    transformers = _transformers()
    settings = transformers.AutoConfig.for_model(model_type, **config)
    return _Pooled(transformers.AutoModel.from_config(settings, attn_implementation="eager"))


def from_transformers(folder: str | Path, **fields: Any) -> tuple[FrozenBackbone, Meta]:
    """Return learner and weights of a model that `transformers` can load.

    It is a folder, or a name that `transformers` downloads.
    """
    model = _transformers().AutoModel.from_pretrained(folder)
    config: Mapping[str, Any] = model.config.to_diff_dict()
    learner = FrozenBackbone(
        architecture=f"{_HERE}:transformers_backbone",
        arguments={name: value for name, value in config.items() if name not in _ABOUT_FILES},
        **fields,
    )
    return learner, backbone_weights(_Pooled(model))


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise LearnerError(
            "this backbone needs transformers: pip install cfsl[transformers]"
        ) from error
