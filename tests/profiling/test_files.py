import errno
import os
from pathlib import Path

import pytest

from profiling.errors import InputError
from profiling.files import check_file, check_folder, read_json, write_together, write_whole


def test_a_full_disk_is_named_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_whole(tmp_path / "graph.json", "old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*graph\.json"):
        write_whole(target, "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_several_files_are_written_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (write_whole(tmp_path / name, "old") for name in ("a", "b", "c"))
    changed = {first: "new", second: b"new", third: None}
    done: list[int] = []

    def full(descriptor: int) -> None:
        done.append(descriptor)
        if len(done) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left.*b"):
            write_together(changed)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys("abc", "old")
    write_together(changed)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new"}


def test_an_unwritable_file_is_named_not_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: str, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr("profiling.files.os.open", read_only)
    with pytest.raises(OSError, match=r"Read-only") as raised:
        write_whole(tmp_path / "graph.json", "new")
    assert raised.value.filename == str(tmp_path / "graph.json")


def test_an_unwritable_folder_is_reported_before_creation(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "b")
    for name in ("file", "file/a"):
        with pytest.raises(InputError, match=r"cannot be a folder: .*got .*file, a file"):
            check_folder(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_file_that_a_link_names_is_checked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file" / "a")
    with pytest.raises(InputError, match="cannot be a folder"):
        check_file(tmp_path / "link")
    check_file("/dev/null")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written to"):
        check_folder(tmp_path / "a")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "5000 digits"),
        ('[{"device": "v100", "jobs": [], "device": "p100"}]', "key 'device' is repeated"),
    ],
)
def test_json_that_python_cannot_read_is_an_input_error(tmp_path: Path, text: str, got: str) -> None:
    (tmp_path / "body.json").write_text(text)
    with pytest.raises(InputError, match=rf"body\.json cannot be read: .*{got}"):
        read_json(tmp_path / "body.json")


def test_a_link_to_a_file_elsewhere_stays(tmp_path: Path) -> None:
    write_whole(tmp_path / "there" / "store.json", "old")
    link = tmp_path / "store.json"
    link.symlink_to(Path("there") / "store.json")
    write_whole(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "store.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["store.json", "store.json", "there"]


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    file, link = tmp_path / "private.json", tmp_path / "link.json"
    write_whole(file, "old")
    file.chmod(0o600)
    link.symlink_to(file)
    for path in (file, link):
        write_whole(path, "new")
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_new_file_has_the_permissions_of_the_umask_which_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that each set it for a moment could leave it at 0."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", None)
            write_whole(tmp_path / "new.json", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "new.json").stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "rows.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "a,b")
        assert os.read(reader, 10) == b"a,b"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
