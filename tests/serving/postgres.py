"""A separate PostgreSQL server, if its programs are installed (by Debian or otherwise)."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.waiting import until


def programs() -> Path | None:
    """The folder with `initdb` and `pg_ctl`, or None."""
    program = shutil.which("initdb")
    if program:
        return Path(program).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


def pooler() -> str | None:
    """The program PgBouncer, which Debian keeps where users' paths do not lead, or None."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


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

    @contextmanager
    def pooled(self) -> Iterator[str]:
        """The database behind PgBouncer, which gives every transaction any of its connections."""
        user = self.url.partition("://")[2].partition("@")[0]
        settings = {
            "listen_addr": "", "unix_socket_dir": self.folder, "auth_type": "any", "pool_mode": "transaction",
            "ignore_startup_parameters": "options",
        }  # fmt: skip
        lines = ["[databases]", f"postgres = host={self.folder} user={user}", "[pgbouncer]"]
        file = self.folder / "pgbouncer.ini"
        file.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items())]))
        program = pooler()
        assert program is not None
        command = [*self.prefix, program, "-q", str(file)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/") as process:
            try:
                until(lambda: _listens(self.folder / ".s.PGSQL.6432"), "PgBouncer listens")
                yield f"{self.url}&port=6432"
            finally:
                process.terminate()

    def send(self, number: int) -> None:
        """Send a signal to the server and all its processes; SIGSTOP freezes it, SIGCONT resumes it."""
        parent = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        for process in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


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
