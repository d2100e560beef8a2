"""`Store`: the engine, its transactions, and the upgrade of its tables."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, create_engine, event, literal_column, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session, sessionmaker

from profiling.errors import InputError, UnavailableError
from serving.store.failures import StoreError, explained

# Keys of our advisory locks in PostgreSQL.
_UPGRADE, _WRITE, _TURN = 0xC07E4A, 0xC07E4B, 0xC07E4C
_TURN_LOOK_S = 0.001
_STATEMENT_MS = 30_000
_ADDRESS = ("host", "hostaddr", "port", "dbname", "service")
_CLOCKS = {  # seconds since 1970, by whether it is SQLite
    True: "SELECT (julianday('now') - 2440587.5) * 86400.0",
    False: "SELECT extract(epoch FROM clock_timestamp())",
}


def check_exists(url: str) -> None:
    """Raise `InputError` if `url` names a missing SQLite file, which `Store` would create."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return  # `Store` reports what is wrong with it
    file = parsed.database if parsed.get_backend_name() == "sqlite" else None
    if file and file != ":memory:" and not Path(file).exists():
        raise InputError(
            f"no database at {file}",
            expected="the database of a service",
            hint="set it with --database to the value given to `cotenant serve --database`",
        )


class Store:
    """Transactions on the database at `url`; tables are created or upgraded on opening.

    SQLite runs in write-ahead mode with full syncs, so acknowledged writes survive a kill and a power cut. A
    writer waits up to `busy_s` for another one before the call fails with `UnavailableError`.
    """

    def __init__(self, url: str, busy_s: float = 5.0) -> None:
        try:
            parsed = make_url(url)
            self.sqlite = parsed.get_backend_name() == "sqlite"
            if self.sqlite and parsed.database in (None, "", ":memory:"):
                raise InputError(
                    "a store in memory cannot be used",
                    expected="sqlite:///FILE: threads and processes share it",
                )
            self._file = Path(parsed.database) if self.sqlite and parsed.database else None
            self._folder = None if self._file is None else self._file.parent
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                if not os.access(self._folder, os.W_OK):
                    raise UnavailableError(
                        "the database's folder cannot be written",
                        expected="a folder for the database and its write-ahead log",
                        got=str(self._folder.resolve()),
                    )
            options = _engine_options(self.sqlite, busy_s)
            self.engine: Engine = create_engine(url, **options)
            # Readers have their own connections, which waiting writers cannot exhaust.
            self.reading: Engine = create_engine(url, **options)
        except ArgumentError:
            # It may hold a password.
            path = url if url and "@" not in url and "://" not in url else None
            raise InputError(
                "database address is not a URL",
                expected="sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME",
                got=path,
                hint=path and f"the file is sqlite:///{path}",
            ) from None
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise InputError(
                "database address cannot be used",
                expected="sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME",
                got=" ".join(str(error).split()),
                hint="PostgreSQL needs the extra `postgres`: pip install 'cotenant[postgres]'",
            ) from None
        except ValueError:  # its message may contain part of the password
            raise InputError(
                "database address has an invalid port",
                expected="postgresql+psycopg://USER@HOST:PORT/NAME",
                hint="write @, : and / of a password as %40, %3A and %2F",
            ) from None
        except OSError as error:
            raise UnavailableError(
                "cannot create the database's folder",
                expected="a folder that can be created or written",
                got=str(error),
                hint="set another with --database sqlite:///FILE",
            ) from None
        if self.sqlite:
            # A writer locks at once, because a read that turns into a write could fail half-way.
            for engine, begin in ((self.engine, "BEGIN IMMEDIATE"), (self.reading, "BEGIN")):
                event.listen(engine, "connect", _sqlite_settings)
                event.listen(engine, "begin", partial(_begin, statement=begin))
        else:
            for engine in (self.engine, self.reading):
                event.listen(engine, "connect", _postgres_settings)
        # In messages; `name` looks at the file system.
        address = self.engine.url
        where = {key: value for key, value in address.query.items() if key in _ADDRESS}  # of a Unix socket
        self._label = str(self._file or address.set(query=where).render_as_string(hide_password=True))
        # In answers to HTTP clients, which are not told where it is.
        self._short_label = self._file.name if self._file else str(self.engine.url.database)
        self._busy_ms = round(1000 * busy_s)
        clock = _CLOCKS[self.sqlite]
        self._clock = text(clock)
        self.clock: ColumnElement[float] = literal_column(f"({clock})")  # `now`, inside a statement
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)
        self._readers = sessionmaker(self.reading, expire_on_commit=False)
        self._upgrade()
        self._inode = self._inode_of_file()

    def _upgrade(self) -> None:
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        # Workers start together: one upgrades, the others wait.
        with explained(self._label), self._upgrading_alone(), self.engine.connect() as connection:
            if not self.sqlite:  # until the upgrade is committed
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE})"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            connection.commit()

    @contextmanager
    def _upgrading_alone(self) -> Iterator[None]:
        """A lock on the folder of a SQLite file, which leaves nothing behind.

        SQLite's own lock cannot span an upgrade.
        """
        if self._folder is None:
            yield
            return
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _inode_of_file(self) -> int | None:
        try:
            return None if self._file is None else self._file.stat().st_ino
        except OSError:
            return None

    def _check_file(self) -> None:
        """Raise `StoreError` if the SQLite file was deleted or replaced.

        Writes would go to the one that is still open and be gone after a restart.
        """
        if self._inode_of_file() != self._inode:
            raise StoreError(
                "the database file was deleted or replaced while in use",
                got=self._short_label,
                hint="put it back, or restart the service",
            )

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session with a consistent view of the database."""
        with explained(self._short_label), self._readers() as session:
            if not self.sqlite:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is committed at the end or rolled back; one at a time.

        Raises:
            StoreError: the database is locked, full or unreachable, or its file is gone.
            ConflictError: concurrent update.
            InputError: the database cannot hold a value.
        """
        self._check_file()
        with explained(self._short_label), self._sessions() as session, session.begin():
            connection = session.connection()
            if not self.sqlite:  # one writer at a time, for the same guarantees as with SQLite
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {self._busy_ms}")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITE})")
            yield session

    def take_turn(self, wait_s: float) -> Callable[[], None] | None:
        """Take a turn among the processes that use this database, outside transactions.

        Correctness does not depend on it.

        Args:
            wait_s: how long to wait for it.

        Returns:
            a function that ends the turn, once; None if others kept it for too long.

        Raises:
            StoreError: the database does not respond.
        """
        if self.sqlite:
            return None if self._folder is None else self._turn_by_file(wait_s)
        with explained(self._short_label):
            connection = self.engine.connect()
        try:
            connection.execute(text(f"SET LOCAL lock_timeout = {max(1, round(1000 * wait_s))}"))
            # A lock of the session would stay with the server's connection if a pooler gives that to others.
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_TURN})"))
        except DBAPIError:
            _roll_back(connection)
            return None
        return _once(partial(_roll_back, connection))

    def _turn_by_file(self, wait_s: float) -> Callable[[], None] | None:
        assert self._folder is not None
        try:
            handle = os.open(f"{self.engine.url.database}-turn", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # a full disk, which writes will also hit
            return None
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return _once(partial(os.close, handle))
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(handle)
                    return None
                time.sleep(_TURN_LOOK_S)

    def now(self, session: Session) -> float:
        """Seconds since 1970 by the database's clock, which all processes share."""
        return float(session.connection().execute(self._clock).scalar_one())

    def ping(self) -> None:
        """Raise `UnavailableError` if the database does not respond, or its file is gone or damaged."""
        self._check_file()
        with self.read() as session:
            # Without a table, SQLite would not look at its file.
            session.execute(text("SELECT version FROM cluster"))

    @property
    def name(self) -> str:
        """The database without its password, as named from any folder."""
        return self._label if self._file is None else f"sqlite:///{self._file.resolve()}"

    def close(self) -> None:
        self.engine.dispose()
        self.reading.dispose()


def _engine_options(sqlite: bool, busy_s: float) -> dict[str, Any]:
    """Arguments of `create_engine`."""
    options: dict[str, Any] = {
        "json_serializer": _to_json, "json_deserializer": msgspec.json.decode,
        "pool_pre_ping": not sqlite, "pool_timeout": busy_s, "pool_size": 10,
    }  # fmt: skip
    if sqlite:
        return options | {"connect_args": {"timeout": busy_s}}
    whole_s = max(1, round(busy_s))
    session = {
        "statement_timeout": _STATEMENT_MS,
        # The server, too, has to notice that a service is gone: until then it keeps that service's lock on writes.
        "tcp_user_timeout": 1000 * whole_s,
        "tcp_keepalives_idle": whole_s,
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": whole_s,
    }
    connect = {
        "connect_timeout": whole_s,
        # When its machine or the network is gone, nothing says so, and the system would send again for 15 minutes.
        "tcp_user_timeout": 1000 * whole_s,
        "keepalives_idle": whole_s,
        "keepalives_interval": 1,
        "keepalives_count": whole_s,
        # Where the database has no encoding (SQL_ASCII), psycopg would return bytes.
        "client_encoding": "utf8",
        "options": " ".join(f"-c {name}={value}" for name, value in session.items()),
    }
    # Whatever the database's default: a writer must see what was committed before its turn.
    return options | {"connect_args": connect, "isolation_level": "READ COMMITTED"}


def _roll_back(connection: Connection) -> None:
    """End its transaction and return it to its pool, also if the server is gone."""
    try:
        connection.rollback()
    except DBAPIError:
        connection.invalidate()
    finally:
        connection.close()


def _once(function: Callable[[], None]) -> Callable[[], None]:
    """Call `function` only the first time."""
    left = [function]

    def call() -> None:
        if left:
            left.pop()()

    return call


def _begin(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement)


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _postgres_settings(connection: Any, _: Any) -> None:
    """Prepare no statements behind a pooler such as PgBouncer.

    It may run the next transaction on another connection to the server, which has not prepared them. Without them a
    node's report takes the server twice the processor time, so they stay where there is no pooler.
    """
    behind = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
    connection.rollback()
    if behind != connection.info.backend_pid:  # a pooler makes up the number that it gives its clients
        connection.prepare_threshold = None


def _sqlite_settings(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, see `Store.write`
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
