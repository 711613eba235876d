"""What people see in a terminal."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from grapevine.cli.main import main
from grapevine.cli.terminal import show_grid


@pytest.mark.parametrize("title", ["Short", "Labels by xclp with mlwe (neighbours 10, alpha 0.99)"])
def test_a_title_is_not_broken_by_a_small_table(title, capsys):
    """The title of a label job by xclp stood in two lines, the second `alpha / 0.99)`."""
    show_grid(title, ["party", "rows"], [["north", 10]])
    assert title in [line.strip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("command", ["doctor", "join"])
def test_a_table_without_its_flag_is_not_an_invitation(command, tmp_path):
    """`grapevine doctor berlin.csv` warned of invitations among the arguments."""
    Path(tmp_path / "berlin.csv").write_text("a,b\n")
    found = CliRunner().invoke(main, [command, str(tmp_path / "berlin.csv")])
    assert "berlin.csv is a file, which needs its flag: --data FILE for a table" in found.output
    found = CliRunner().invoke(main, [command, "grapevine-abcdef"])
    assert "can read an invitation among the arguments" in found.output


@pytest.mark.parametrize(("labels", "said"), [("server:9,clients:40", "5 clients and the server"), ("clients:40", "5 clients")])
def test_the_server_of_a_split_is_not_counted_as_a_client(labels, said):
    """`grapevine data show` with labels at the server had a client too many in its title."""
    found = CliRunner().invoke(main, ["data", "show", "--data", "digits", "--clients", "5", "--labels", labels])
    assert f"digits: {said}, split" in found.output
