"""Co-location sets with the solo runs of their members, from a folder of tables."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.tables import available_tables, empty_table, read_table, validate_table
from datasets.targets import MEASURED_ALONE
from profiling.errors import InputError
from profiling.workload import REGISTERED, Workload

if TYPE_CHECKING:
    import pandas as pd

_RUN = ["device", "workload", "campaign"]


def read_sets(directory: Path | str, disturbed: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The `colocation` table of a folder, and solo runs of its campaigns.

    If there is no `solo` table, or it lacks a member, the member's own `solo_step_time_s` is used. Architectures that
    have a job in common are one, under one name. Runs of jobs without a graph are left out, with a warning, and so are
    runs that other processes disturbed, unless `disturbed`.

    Raises:
        InputError: no `colocation` table, or an invalid table.
    """
    colocation = read_table(directory, "colocation")
    has_solo = "solo" in available_tables(directory)
    solo = read_table(directory, "solo") if has_solo else empty_table("solo")
    if not disturbed:
        colocation, solo = without_disturbed(colocation, "sets"), without_disturbed(solo, "solo runs")
    colocation, solo = _with_one_architecture(_with_graphs(colocation, solo))
    return colocation, solo_runs(colocation, solo)


def without_disturbed(table: pd.DataFrame, runs: str) -> pd.DataFrame:
    """The rows of `table` that no other process disturbed; a warning says how many of its `runs` it leaves out."""
    if not table["disturbed"].any():
        return table
    run = table["set_id"] if "set_id" in table else table.index.to_series()
    warnings.warn(
        f"left out: {run[table['disturbed']].nunique()} of {run.nunique()} {runs}, which other processes disturbed "
        "(train and evaluate use them with --disturbed)",
        stacklevel=3,
    )
    return table[~table["disturbed"]]


def _with_graphs(colocation: pd.DataFrame, solo: pd.DataFrame) -> list[pd.DataFrame]:
    """The tables without the jobs that are code, `module:factory`, whose capture failed when they were measured."""
    specs = {*colocation["workload"], *solo["workload"]}
    models = {spec: Workload.parse(spec).model for spec in specs}
    code = {spec for spec, model in models.items() if ":" in model and not model.startswith(REGISTERED)}
    if not code:
        return [colocation, solo]
    lost = set(colocation.loc[colocation["workload"].isin(code), "set_id"])
    warnings.warn(
        f"left out for lack of a graph: {', '.join(sorted({models[spec] for spec in code}))} "
        f"(sets: {len(lost)} of {colocation['set_id'].nunique()})",
        stacklevel=3,
    )
    return [colocation[~colocation["set_id"].isin(lost)], solo[~solo["workload"].isin(code)]]


def _with_one_architecture(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The tables with one architecture for each job: held out under one of two names, it would be learned from under
    the other. So are jobs known by the hashes of their graphs only, if these are captures of one model. The first table's
    names come first, and hashes last."""
    import pandas as pd

    from profiling.capture.naming import captured_from

    named = pd.concat([table[["workload", "architecture"]].assign(table=n) for n, table in enumerate(tables)])
    named = named.assign(hashed=named["architecture"].astype(str).str.startswith(REGISTERED))
    named = named.sort_values(["hashed", "table", "architecture"]).drop_duplicates(
        ["workload", "architecture"]
    )
    one: dict[str, str] = {}

    def first(name: str) -> str:
        while one.get(name, name) != name:
            name = one[name]
        return name

    hashes = named.loc[named["hashed"], "architecture"].unique()
    models = {graph: model for graph in hashes if (model := captured_from(graph))}
    order = [*named.loc[~named["hashed"], "architecture"], *sorted(models.values()), *hashes]
    rank = {name: place for place, name in enumerate(dict.fromkeys(order))}
    groups: list[Iterable[str]] = [
        names for _, names in named.groupby("workload", sort=False)["architecture"]
    ]
    for names in (*groups, *models.items()):
        same = sorted({first(name) for name in names}, key=rank.__getitem__)
        one |= dict.fromkeys(same, same[0])
    return [table.assign(architecture=table["architecture"].map(first)) for table in tables]


def rows_of(table: pd.DataFrame, names: Iterable[str], column: str = "campaign") -> pd.DataFrame:
    """Rows of `table` whose `column` is among `names`.

    Raises:
        InputError: there are none.
    """
    wanted = list(names)
    rows = table[table[column].isin(wanted)]
    if not len(rows):
        raise InputError(
            f"the data lack the {column}",
            expected=", ".join(wanted),
            got=", ".join(sorted(map(str, table[column].dropna().unique()))) or "no rows",
        )
    return rows


def solo_runs(colocation: pd.DataFrame, solo: pd.DataFrame) -> pd.DataFrame:
    """Solo runs from the campaigns of `colocation`.

    They are rows of `solo`, one for all repeats of a run with their medians, and a row for each member that has only a
    `solo_step_time_s`. Rows of a job whose step time `solo` lacks on one GPU (it may hold its memory alone) get that of
    its members.
    """
    import pandas as pd

    known = _medians(solo[solo["campaign"].isin(set(colocation["campaign"]))])
    stated = colocation[colocation["solo_step_time_s"].notna()]
    median = stated.groupby(_RUN, sort=False)["solo_step_time_s"].transform("median")
    members = stated.assign(step_time_s=median, gpus=1).drop_duplicates(_RUN)
    alone = known[known["gpus"] == 1]
    timed = alone.loc[alone["step_time_s"].notna(), _RUN].drop_duplicates()
    members = members.merge(timed, on=_RUN, how="left", indicator=True)
    members = members[members["_merge"] == "left_only"].drop(columns="_merge")
    if not len(members):
        return known.reset_index(drop=True)
    untimed = alone[_RUN].reset_index().merge(members[[*_RUN, "step_time_s"]], on=_RUN).set_index("index")
    known = known.assign(step_time_s=known["step_time_s"].fillna(untimed["step_time_s"]))
    members = members.merge(alone[_RUN].drop_duplicates(), on=_RUN, how="left", indicator=True)
    members = members[members["_merge"] == "left_only"]
    columns = [column for column in solo.columns if column in members]
    parts = [part for part in (known, members[columns]) if len(part)]
    return validate_table("solo", pd.concat(parts, ignore_index=True))


def _medians(solo: pd.DataFrame) -> pd.DataFrame:
    """Solo runs, one for all repeats of a run."""
    key = [*_RUN, "gpus"]
    repeated = solo.duplicated(key, keep=False)
    if not repeated.any():
        return solo
    medians = solo[repeated].groupby(key, sort=False)[list(MEASURED_ALONE)].transform("median")
    solo = solo.copy()
    solo.loc[repeated, list(MEASURED_ALONE)] = medians
    return solo.drop_duplicates(key)
