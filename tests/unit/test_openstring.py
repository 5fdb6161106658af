"""An open string names directory and queue space; a plain path is one too; the rest is refused with the grammar."""

from __future__ import annotations

from pathlib import Path

import pytest

import xaqueue
from xaqueue.endpoint import OPEN_STRING as GRAMMAR
from xaqueue.endpoint import parse_open_string as parse
from xaqueue.errors import InvalidArgument, SpaceError


@pytest.mark.parametrize(
    ("text", "directory", "name"),
    [
        ('datadir="/data/orders",qspace="SPACE"', "/data/orders", "SPACE"),
        ("datadir='/data/orders',qspace='SPACE'", "/data/orders", "SPACE"),
        ("datadir=/data/orders,qspace=SPACE", "/data/orders", "SPACE"),
        ("qspace=\"SPACE\",datadir='/data/or ders'", "/data/or ders", "SPACE"),
        ('datadir="/data/a,b=c"', "/data/a,b=c", None),
        ('datadir="/it\'s"', "/it's", None),
        (' datadir = "/data" , qspace = SPACE ', "/data", "SPACE"),
        ("datadir=rel/ative", "rel/ative", None),
        ("/plain/path", "/plain/path", None),
        ("plain", "plain", None),
        ("datadir", "datadir", None),
        ("a=b,c", "a=b,c", None),
        ("", "", None),
    ],
)
def test_what_it_takes(text: str, directory: str, name: str | None) -> None:
    """XAQ-03, XAQ-06, XAQ-07."""
    assert parse(text) == (directory, name)


@pytest.mark.parametrize(
    "text",
    [
        'qspace="SPACE"',
        'datadir=""',
        "datadir=",
        'datadir="/data",qspace=""',
        'datadir="/data",datadir="/other"',
        'datadir="/data",qspce="SPACE"',
        'datadir="/data" qspace="SPACE"',
        'datadir="/data,qspace="SPACE"',
        'datadir="/data"x',
        "datadir='/data",
        "datadir=/data,/other",
    ],
)
def test_what_it_refuses(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(text)
    assert GRAMMAR in str(refused.value)
    assert repr(text) in str(refused.value)


def test_connect_takes_an_open_string(tmp_path: Path) -> None:
    """XAQ-10: a directory that belongs to another queue space is refused."""
    space = tmp_path / "space"
    xaqueue.connect(f'datadir="{space}",qspace="SPACE"', create=True, sync="NONE").close()
    xaqueue.connect(f"datadir='{space}'").close()
    with pytest.raises(SpaceError, match="is queue space 'SPACE', not 'OTHER'"):
        xaqueue.connect(f'datadir="{space}",qspace="OTHER"')
