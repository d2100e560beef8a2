"""`python -m profiling.zoo`: regenerate `listing.json` after an entry was added or changed."""

from __future__ import annotations

from profiling.files import write_json
from profiling.zoo.listing import LISTING, listed
from profiling.zoo.registry import all_entries

if __name__ == "__main__":
    write_json(LISTING, [listed(entry) for entry in all_entries()])
