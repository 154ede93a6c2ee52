"""BibTeX of what a card used: the learner, the data set, the tasks.

Titles and venues are those of the papers' own pages and of the reference lists of the two papers of
the benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping

from cfsl.cards.schema import Card
from cfsl.learners.registry import LEARNERS
from cfsl.report.board import places_of

ENTRIES: Mapping[str, str] = {
    "antoniou2020": """@article{antoniou2020,
  title = {Defining Benchmarks for Continual Few-Shot Learning},
  author = {Antoniou, Antreas and Patacchiola, Massimiliano and Ochal, Mateusz and Storkey, Amos},
  journal = {arXiv preprint arXiv:2004.11967}, year = {2020}
}""",
    "kowadlo2022": """@article{kowadlo2022,
  title = {Expanding continual few-shot learning benchmarks to include recognition of specific
    instances},
  author = {Kowadlo, Gideon and Ahmed, Abdelrahman and Mayan, Amir and Rawlinson, David},
  journal = {arXiv preprint arXiv:2209.07863}, year = {2022}
}""",
    "snell2017": """@inproceedings{snell2017,
  title = {Prototypical Networks for Few-shot Learning},
  author = {Snell, Jake and Swersky, Kevin and Zemel, Richard S.},
  booktitle = {Advances in Neural Information Processing Systems}, pages = {4077--4087},
  year = {2017}
}""",
    "kirkpatrick2017": """@article{kirkpatrick2017,
  title = {Overcoming catastrophic forgetting in neural networks},
  author = {Kirkpatrick, James and Pascanu, Razvan and Rabinowitz, Neil and Veness, Joel and
    Desjardins, Guillaume and Rusu, Andrei A. and Milan, Kieran and Quan, John and
    Ramalho, Tiago and Grabska-Barwinska, Agnieszka and others},
  journal = {Proceedings of the National Academy of Sciences}, year = {2017}
}""",
    "antoniou2019": """@inproceedings{antoniou2019,
  title = {How to train your {MAML}},
  author = {Antoniou, Antreas and Edwards, Harrison and Storkey, Amos},
  booktitle = {International Conference on Learning Representations}, year = {2019}
}""",
    "antoniou2019sca": """@inproceedings{antoniou2019sca,
  title = {Learning to Learn by Self-Critique},
  author = {Antoniou, Antreas and Storkey, Amos J.},
  booktitle = {Advances in Neural Information Processing Systems}, volume = {32}, year = {2019}
}""",
    "raghu2020": """@inproceedings{raghu2020,
  title = {Rapid Learning or Feature Reuse? Towards Understanding the Effectiveness of {MAML}},
  author = {Raghu, Aniruddh and Raghu, Maithra and Bengio, Samy and Vinyals, Oriol},
  booktitle = {International Conference on Learning Representations}, year = {2020}
}""",
    "triantafillou2020": """@inproceedings{triantafillou2020,
  title = {Meta-Dataset: A Dataset of Datasets for Learning to Learn from Few Examples},
  author = {Triantafillou, Eleni and Zhu, Tyler and Dumoulin, Vincent and Lamblin, Pascal and
    Evci, Utku and Xu, Kelvin and Goroshin, Ross and Gelada, Carles and Swersky, Kevin and
    Manzagol, Pierre-Antoine and Larochelle, Hugo},
  booktitle = {International Conference on Learning Representations}, year = {2020}
}""",
    "lake2015": """@article{lake2015,
  title = {Human-level concept learning through probabilistic program induction},
  author = {Lake, Brenden M. and Salakhutdinov, Ruslan and Tenenbaum, Joshua B.},
  journal = {Science}, volume = {350}, number = {6266}, pages = {1332--1338}, year = {2015}
}""",
    "cfsl": """@software{cfsl,
  title = {cfsl: the benchmark for continual few-shot learning},
  author = {{The cfsl authors}}
}""",
}
_DATA = {"omniglot": "lake2015", "slimagenet64": "antoniou2020", "slim-tiny": "antoniou2020"}
_PAPER_2 = {"scaling", "instance", "corruption"}
"""Suites of the second paper; what is also in Table 1 of the first needs no second citation."""


def keys_of(card: Card) -> list[str]:
    """Return what to cite for a card: benchmark, tasks, data set and learner, each once."""
    suites = {suite for suite, _ in places_of(card.tasks)}
    learner = LEARNERS.get(card.learner.name)

    keys = [
        "cfsl",
        "antoniou2020",
        "kowadlo2022" if suites & _PAPER_2 and "table1" not in suites else "",
        next((key for name, key in _DATA.items() if card.tasks.data.startswith(name)), ""),
        learner.cite if learner else "",
    ]
    return [key for key in dict.fromkeys(keys) if key]
