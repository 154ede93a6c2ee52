"""Download archives, and check them against their checksums."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from cfsl.errors import FetchError

BytesProgress = Callable[[int, int], None]
"""Called with the bytes so far and the bytes in all of the file that is being downloaded."""


class _ProgressBar:
    """A progress bar as pooch expects it, which calls a function."""

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
    """Download files, given as addresses with their checksums, into a folder.

    Files that are there already are not downloaded again, and a download that stops half-way leaves
    nothing. `by_hand` tells the user what to do without a network.
    """
    import pooch  # here, since its import takes a tenth of a second

    pooch.get_logger().setLevel(logging.ERROR)
    bar = _ProgressBar(progress or (lambda done, total: None))

    paths = []
    for url, checksum in urls.items():
        downloader = pooch.DOIDownloader if url.startswith("doi:") else pooch.HTTPDownloader
        try:
            fetched = pooch.retrieve(
                url,
                checksum,
                fname=url.rsplit("/", 1)[-1],
                path=folder,
                downloader=downloader(progressbar=bar, timeout=30),
            )
        # requests, urllib3, pooch and the system all raise errors of their own.
        except Exception as error:
            raise FetchError(f"{url} could not be fetched: {_reason(error)}. {by_hand}") from error
        paths.append(Path(fetched))
    return paths


def files_of_doi(doi: str, *, by_hand: str) -> dict[str, str]:
    """Return the checksums of the files of a Zenodo record by their addresses."""
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
    """Return the message of the innermost error: those of the outer ones are pages long."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
