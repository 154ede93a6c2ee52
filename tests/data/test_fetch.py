"""Downloads that fail are refused in one line that says what to do, and leave nothing."""

from __future__ import annotations

import functools
import gc
import hashlib
import http.server
import threading
import warnings
from pathlib import Path

import pytest

from archives import class_files, content_of, part_files, png, write_tar, write_zip
from cfsl.data import catalog, omniglot, slimagenet64
from cfsl.errors import CfslError, FetchError, UnknownNameError


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; what ends with .short is promised longer than it is."""

    def log_message(self, *arguments):
        pass

    def send_header(self, key, value):
        longer = key == "Content-Length" and "short" in self.path
        super().send_header(key, str(int(value) + 100) if longer else value)


@pytest.fixture
def no_open_sockets():
    """Close the sockets of the HTTP library here, or another test is warned of them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def server(tmp_path, monkeypatch, no_open_sockets):
    """Serve tmp_path/served on this machine, and return (folder, address)."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    ) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def urls_of(monkeypatch, name: str, urls: dict[str, str | None]) -> None:
    entry = catalog.CATALOG[name]
    changed = {**vars(entry), "urls": lambda by_hand: urls}
    monkeypatch.setattr(
        catalog, "CATALOG", {**catalog.CATALOG, name: catalog.CatalogEntry(**changed)}
    )


def fetch_refused(
    root: Path, *says: str, name: str = "omniglot", kind: type[CfslError] = FetchError
) -> str:
    with pytest.raises(kind) as caught:
        catalog.fetch_dataset(name, root=root)
    message = str(caught.value)
    assert "\n" not in message
    for text in says:
        assert text in message
    assert content_of(root) == {}
    assert not [path for path in root.rglob("*") if path.is_file() and "downloads" in path.parts]
    return message


def test_without_a_network_the_message_says_where_the_files_are(
    tmp_path, monkeypatch, no_open_sockets
):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    closed = {
        url.replace(omniglot.BASE_URL, "http://127.0.0.1:9/"): sum_
        for url, sum_ in omniglot.DOWNLOADS.items()
    }
    monkeypatch.setattr(omniglot, "DOWNLOADS", closed)
    fetch_refused(tmp_path, *closed, "Connection refused", "cfsl data add omniglot --from FOLDER")


@pytest.mark.parametrize("name", ["omniglot", "slimagenet64"])
def test_behind_a_dead_proxy_the_message_says_how_to_add_the_files(
    tmp_path, monkeypatch, no_open_sockets, name
):
    for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    where = slimagenet64.ZENODO_DOI if name == "slimagenet64" else omniglot.BASE_URL
    fetch_refused(tmp_path, where, f"cfsl data add {name} --from FOLDER", name=name)


def test_a_download_with_a_wrong_checksum_is_refused(tmp_path, monkeypatch, server):
    folder, address = server
    write_tar(folder / "slim.tar", part_files("slim/"))
    urls_of(monkeypatch, "slimagenet64", {f"{address}/slim.tar": "md5:" + "0" * 32})
    fetch_refused(
        tmp_path / "root",
        "slim.tar could not be fetched",
        "does not match the known hash",
        name="slimagenet64",
    )


def test_a_download_that_the_server_does_not_have_is_refused(tmp_path, monkeypatch, server):
    urls_of(monkeypatch, "slimagenet64", {f"{server[1]}/gone.tar": None})
    fetch_refused(tmp_path / "root", "gone.tar could not be fetched: 404", name="slimagenet64")


def test_a_download_that_stops_half_way_is_refused(tmp_path, monkeypatch, server):
    folder, address = server
    write_tar(folder / "short.tar", part_files("slim/"))
    urls_of(monkeypatch, "slimagenet64", {f"{address}/short.tar": None})
    fetch_refused(
        tmp_path / "root",
        "short.tar could not be fetched",
        "100 more expected",
        name="slimagenet64",
    )


def test_a_download_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch, server):
    (tmp_path / "root").write_text("a file")
    urls_of(monkeypatch, "slimagenet64", {f"{server[1]}/slim.tar": None})
    with pytest.raises(FetchError, match=r"could not be fetched: .*root"):
        catalog.fetch_dataset("slimagenet64", root=tmp_path / "root")


def test_a_data_set_without_an_address_says_how_to_add_it(tmp_path):
    fetch_refused(
        tmp_path,
        "'slim-tiny' has no public address",
        "cfsl data add slim-tiny --from",
        name="slim-tiny",
    )


def test_an_unknown_data_set_gets_a_suggestion(tmp_path):
    fetch_refused(
        tmp_path, "'omniglott'; did you mean 'omniglot'?", name="omniglott", kind=UnknownNameError
    )


def test_an_archive_is_fetched_checked_and_packed(tmp_path, monkeypatch, server):
    folder, address = server
    files = {
        f"slim/{part}/{part}{c}/{n}.png": png(n)
        for part in ("train", "val", "test")
        for c in (0, 1)
        for n in (0, 1)
    }
    content = write_tar(folder / "slim.tar", files).read_bytes()
    checksum = f"md5:{hashlib.md5(content).hexdigest()}"
    urls_of(monkeypatch, "slimagenet64", {f"{address}/slim.tar": checksum})
    counts = slimagenet64.Counts(train=2, val=2, test=2, images=2)
    monkeypatch.setitem(slimagenet64.COUNTS, "SlimageNet64", counts)
    received, packed = [], []
    data = catalog.fetch_dataset(
        "slimagenet64",
        root=tmp_path / "root",
        download_progress=lambda done, total: received.append((done, total)),
        progress=packed.append,
    )
    assert data.info.class_names == ("test0", "test1", "train0", "train1", "val0", "val1")
    assert received[-1] == (len(content), len(content)) and sum(packed) == 12
    (folder / "slim.tar").unlink()
    again = catalog.fetch_dataset("slimagenet64", root=tmp_path / "root")
    assert again.fingerprint == data.fingerprint, "what is there is not fetched again"


def test_two_archives_are_fetched_into_one_folder(tmp_path, monkeypatch, server):
    folder, address = server
    for name in omniglot.ARCHIVES:
        write_zip(folder / f"{name}.zip", class_files())
    urls_of(monkeypatch, "omniglot", {f"{address}/{name}.zip": None for name in omniglot.ARCHIVES})
    asked = []
    entry = {**vars(catalog.CATALOG["omniglot"]), "add": asked.append}
    monkeypatch.setattr(catalog, "CATALOG", {"omniglot": catalog.CatalogEntry(**entry)})
    catalog.fetch_dataset("omniglot", root=tmp_path / "root", recipe="inverted")
    request = asked[0]
    assert sorted(path.name for path in request.source.iterdir()) == [
        f"{name}.zip" for name in omniglot.ARCHIVES
    ]
    assert (request.name, request.recipe, request.root) == (
        "omniglot",
        "inverted",
        tmp_path / "root",
    )
