"""A separate PostgreSQL server, if its programs are installed (by Debian or otherwise)."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


def programs() -> Path | None:
    """The folder with `initdb` and `pg_ctl`, or None."""
    program = shutil.which("initdb")
    if program:
        return Path(program).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


class Server:
    """One server on a Unix socket; `url` is its database."""

    def __init__(self, folder: Path, user: str, prefix: list[str], fsync: bool) -> None:
        self.folder, self.prefix, self.fsync = folder, prefix, fsync
        self.url = f"postgresql+psycopg://{user}@/postgres?host={folder}"

    def run(self, program: str, *arguments: str) -> None:
        folder = programs()
        assert folder is not None
        command = [*self.prefix, str(folder / program), "-D", f"{self.folder}/data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories={self.folder} -c fsync={'on' if self.fsync else 'off'}"
        self.run("pg_ctl", "-w", "-l", f"{self.folder}/log", "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-w", "-m", "immediate", "stop")

    def send(self, number: int) -> None:
        """Send a signal to the server and all its processes; SIGSTOP freezes it, SIGCONT resumes it."""
        parent = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        for process in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@contextmanager
def server(fsync: bool = False) -> Iterator[Server]:
    """A new server, removed at the end.

    As root it runs under the account `postgres`, because it refuses to run as root.
    """
    with tempfile.TemporaryDirectory(prefix="cotenant-pg-") as name:
        folder, user, prefix = Path(name), pwd.getpwuid(os.getuid()).pw_name, []
        if user == "root":
            user, prefix = "postgres", ["runuser", "-u", "postgres", "--"]
            shutil.chown(folder, user)
        postgres = Server(folder, user, prefix, fsync)
        postgres.run("initdb", "-A", "trust", "-E", "UTF8")
        postgres.start()
        try:
            yield postgres
        finally:
            postgres.stop()
