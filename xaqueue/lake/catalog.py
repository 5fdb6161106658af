"""An Iceberg catalogue, as a person names it: by PyIceberg's own configuration, or by its URI."""

from __future__ import annotations

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction

from xaqueue.errors import InvalidArgument


def catalog_named(text: str | None) -> Catalog:
    """The one that PyIceberg knows by this name, or its default one; or ``URI,warehouse=...``, with more of PyIceberg's
    properties, and its ``name``, which is part of the key of its rows in a database. Raises InvalidArgument.
    """
    try:
        if not text or "://" not in text:
            return load_catalog(text)
        uri, *more = text.split(",")
        properties = dict(one.split("=", 1) for one in more)
        return load_catalog(properties.pop("name", "default"), uri=uri, **properties)
    except ValueError as error:
        name, why = text or "default", str(error).replace("using --uri, the config", "in .pyiceberg.yaml")
        missing = "" if text else "--catalog is missing, and "
        raise InvalidArgument(
            f"{missing}Iceberg catalogue {name!r} is not known: {why}; give --catalog its name in .pyiceberg.yaml, or "
            "URI,warehouse=..."
        ) from None


class OneSnapshot(Transaction):
    """Which is tried again on no other snapshot than that which it was begun on: PyIceberg would put the rows behind
    another's commit, that may have them. Whether its own went in after all, it looks by itself before.
    """

    def _rebuild_snapshot_updates(self) -> None:
        raise CommitFailedException("another commit was quicker")
