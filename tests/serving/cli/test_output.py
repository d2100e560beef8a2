from __future__ import annotations

import pytest

from serving.cli.output import bullets, console, headline, plain_table


@pytest.mark.parametrize("name", ["run[lr]", "run[/lr]", "[bold]run[/bold]", "run:fire:", r"C:\[run]"])
def test_names_are_printed_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("job")
    table.add_row(name)
    for line in (name, headline("job", f"  {name}"), table, bullets([name])):
        console().print(line)
        assert name in capsys.readouterr().out
