"""What the tests of bad input share."""

from __future__ import annotations

from pathlib import Path

import pytest

from archives import add, class_files, content_of, write_folder
from cfsl.errors import CfslError, DataError


@pytest.fixture
def refused(tmp_path: Path):
    """Return a check: the source is refused, be the root empty or hold the name already."""
    good = write_folder(tmp_path / "good", class_files({"old": 2, "older": 2, "oldest": 2}))

    def check(
        source: Path, *says: str, kind: type[CfslError] = DataError, name: str = "mine", **options
    ) -> str:
        earlier = tmp_path / "root_with_earlier"
        add(good, earlier, save_as=name)
        before = content_of(earlier)
        for root in (tmp_path / "empty_root", earlier):
            with pytest.raises(kind) as caught:
                add(source, root, name=name, **options)
            message = str(caught.value)
            assert "\n" not in message
            for text in says or (source.name,):
                assert text in message
        assert content_of(tmp_path / "empty_root") == {}
        assert content_of(earlier) == before
        return message

    return check
