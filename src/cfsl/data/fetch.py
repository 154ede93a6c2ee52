"""Download archives, with their checksums."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from cfsl.errors import FetchError

BytesProgress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all) of the file that is coming in."""


class _Bar:
    """What pooch wants of a progress bar, passed on to a function."""

    def __init__(self, report: BytesProgress) -> None:
        self.report, self.total, self.done = report, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        self.report(self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.report(self.done, self.total)


def download(
    urls: Mapping[str, str | None],
    folder: Path,
    *,
    by_hand: str,
    progress: BytesProgress | None = None,
) -> list[Path]:
    """Bring the files of `urls` (address -> checksum) into `folder`; those that are there are not fetched again.

    A download that stops half-way leaves nothing. `by_hand` says what the user can do without a network.
    """
    import pooch  # here and not above: it costs a tenth of a second that other commands need not pay

    pooch.get_logger().setLevel(logging.ERROR)
    bar = _Bar(progress or (lambda done, total: None))
    paths = []
    for url, checksum in urls.items():
        name = url.rsplit("/", 1)[-1]
        downloader = pooch.DOIDownloader if url.startswith("doi:") else pooch.HTTPDownloader
        try:
            fetched = pooch.retrieve(
                url,
                checksum,
                fname=name,
                path=folder,
                downloader=downloader(progressbar=bar, timeout=30),
            )
        except (
            Exception
        ) as error:  # requests, urllib3, pooch and the OS all raise kinds of their own
            raise FetchError(f"{url} could not be fetched: {_reason(error)}. {by_hand}") from error
        paths.append(Path(fetched))
    return paths


def files_of_doi(doi: str, *, by_hand: str) -> dict[str, str]:
    """Return address -> checksum of the files of a Zenodo record, as the record itself states them."""
    import pooch

    pooch.get_logger().setLevel(logging.ERROR)
    record = pooch.create(path=pooch.os_cache("cfsl"), base_url=f"doi:{doi}/", registry=None)
    try:
        record.load_registry_from_doi()
    except Exception as error:
        raise FetchError(
            f"the record doi:{doi} could not be read: {_reason(error)}. {by_hand}"
        ) from error
    return {f"doi:{doi}/{name}": checksum for name, checksum in record.registry.items()}


def _reason(error: BaseException) -> str:
    """Return the innermost reason: outer ones are pages long."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
