"""Batches the predictions of concurrent requests.

A batch grows for as long as each turn of the event loop adds sets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from predictor.types import Prediction
from profiling.devices import runs_on
from profiling.errors import CotenantError, InputError, LimitError, TooSlowError, UnknownNameError
from profiling.workload import ColocationSet, Workload
from scheduling.core.limits import check_predictions
from scheduling.core.snapshot import ClusterSnapshot, Node, changed_nodes
from serving.config import ServiceConfig
from serving.delay import SINCE, DelayLimit, SpareTime
from serving.feedback import Belief, Feedback
from serving.lanes import Lane, OverloadError, current_call
from serving.metrics import Metrics
from serving.model_life import ModelLife, Serving

T = TypeVar("T")
log = structlog.get_logger("cotenant.batching")
Encoded = tuple[str, str, Workload]  # device, sharing mode, job
_INLINE_SETS = 64
#: Processor time for one batch on the event loop; then other requests get a turn.
_TURN_S = 0.004
#: While requests are shed, throughput matters more: a set costs a third less in a batch of 32 than of 12.
_BUSY_TURN_S = 0.008
_FEWEST, _MOST = 8, 64
_WEIGHT = 0.05  # weight of the latest measurement in the mean processor time of a set
_ENCODED_TOGETHER = 4
_HELD_PER_JOB = 2  # jobs that a predictor may hold for each that it may be asked about
#: Bodies up to this size are decoded on the event loop.
INLINE_BYTES = 64 * 2**10
#: Clusters up to this many GPUs and tenants are read on the event loop, and decided without waiting for larger ones.
INLINE_GPUS = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A set waiting for its prediction. `answer` resolves to None if another model has taken over by then."""

    set: ColocationSet
    answer: asyncio.Future[Prediction | None]
    since: float


class Batcher:
    """Lanes in front of one predictor.

    Sets whose jobs the serving model has all seen cost microseconds and run on the event loop, together with
    all others that arrived in the same turn, and in the next turns for as long as each brings more. The rest
    goes to lanes in small pieces, so that the work of a request stops when it is cut short by its deadline or
    its caller leaves: `encoding` captures and encodes new workloads, `bulk` reads large bodies and predicts
    many sets, `parsing` waits for processes that read uploads, `placing` decides one job at a time on the stored
    cluster, because policies share one cache, `sketching` on small clusters in bodies, and `describing` on huge ones.
    """

    def __init__(
        self, life: ModelLife, feedback: Feedback, metrics: Metrics, config: ServiceConfig, delay: DelayLimit
    ) -> None:
        self.life, self.feedback, self.delay = life, feedback, delay
        self.jobs, self.new_workloads = config.model_jobs, config.new_workloads
        self.spare, self.shed_delay_s = SpareTime(delay, config.spare_ratio), config.shed_delay_s
        bounds: dict[str, Any] = {"length": config.queue_length, "wait_s": config.queue_wait_s}
        # A capture may use its full time limit before its process is killed.
        encoding_s = _ENCODED_TOGETHER * config.capture_s + config.stuck_s
        self.encoding = Lane("encoding", metrics, threads=2, stuck_s=encoding_s, **bounds)
        self.bulk = Lane("bulk", metrics, threads=2, stuck_s=config.stuck_s, **bounds)
        self.parsing = Lane(
            "parsing", metrics, threads=1, stuck_s=2 * config.parse_s + config.stuck_s, **bounds
        )
        self.placing = Lane("placing", metrics, threads=1, stuck_s=config.stuck_s, **bounds)
        self.sketching = Lane("sketching", metrics, threads=1, stuck_s=config.stuck_s, **bounds)
        self.describing = Lane("describing", metrics, threads=2, stuck_s=config.stuck_s, **bounds)
        self._waiting: list[_Asked] = []
        self._gathered = 0  # how many of the waiting sets were there at the last check
        self._set_s = _TURN_S / 16  # mean processor time per set in a batch
        self._known: set[Encoded] = set()
        self._known_to: Serving | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._met: tuple[ClusterSnapshot, Serving, set[tuple[str, str]]] | None = None
        self._unpredictable: tuple[Serving | None, dict[Encoded, str]] = None, {}

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self.encoding, self.bulk, self.parsing, self.placing, self.sketching, self.describing

    def belief(self) -> Belief:
        """The serving model with its corrections. Raises `UnavailableError` while there is none."""
        return self.feedback.current(self.life.current())

    def unknown(self, serving: Serving, asked: Iterable[Encoded]) -> list[Encoded]:
        """The jobs that the serving model has not seen, each once."""
        known = self._known if serving is self._known_to else ()
        return list(dict.fromkeys(key for key in asked if key not in known))

    def remember(self, serving: Serving, met: Sequence[Encoded]) -> None:
        """Note that `serving` has seen jobs, and replace it with a fresh copy once it has seen too many."""
        if serving is not self._known_to:
            self._known_to = serving
            self._known.clear()
        self._known.update(met)
        self._renew_if_full(serving)

    def _renew_if_full(self, serving: Serving) -> None:
        """Replace a predictor with a fresh copy once it has cached its work on too many jobs, which has no bound.

        Besides jobs that were asked for, these are what follows from observations of related ones, anew whenever
        such an observation moves their step time, and the same jobs on larger slices of a card.
        """
        held = getattr(serving.predictor, "jobs_held", 0)
        is_full = serving is self._known_to and len(self._known) > self.jobs
        is_full |= held > _HELD_PER_JOB * self.jobs
        if is_full and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        """Load a fresh copy of the model; after a failure, the next attempt has to wait."""
        try:
            await self.life.reload(force=True)
        except CotenantError as error:
            log.warning("no fresh copy of the model, the old one stays", error=error.message)
            await asyncio.sleep(self.life.poll_s)

    async def encode(self, serving: Serving, asked: Iterable[Encoded]) -> None:
        """Capture and encode the jobs that the model has not seen.

        Raises:
            LimitError: too many new jobs for one request. OverloadError: too many requests wait, or so many
                are shed that new workloads must wait.
        """
        new = self.unknown(serving, asked)
        if (count := len({workload for _, _, workload in new})) > self.new_workloads:
            raise LimitError(
                "too many new workloads in one request", expected=f"at most {self.new_workloads}", got=count,
                hint="split them over several requests",
            )  # fmt: skip
        for first in range(0, len(new), _ENCODED_TOGETHER):
            some = new[first : first + _ENCODED_TOGETHER]
            sets = [ColocationSet(device, (workload,), sharing) for device, sharing, workload in some]
            try:
                self.spare.take(len(sets))
            except OverloadError:
                await asyncio.sleep(self.shed_delay_s)  # like other shed requests
                raise
            await self.encoding.run(self._meet_sets, serving, sets)
            self.remember(serving, some)

    def _meet_sets(self, serving: Serving, sets: list[ColocationSet]) -> None:
        call, started = current_call(), time.thread_time()
        try:
            serving.predictor.predict_many(sets)
        finally:
            elsewhere_s = 0.0 if call is None else call.elsewhere_s
            self.spare.spent(time.thread_time() - started + elsewhere_s, len(sets))

    async def predict(self, asked: ColocationSet) -> Prediction:
        """Predict one set, batched with concurrent ones and corrected by feedback.

        Raises:
            CotenantError: as `encode`, or the set cannot be predicted.
        """
        loop, since = asyncio.get_running_loop(), SINCE.get(time.perf_counter())
        while True:
            serving = self.belief().serving
            if self.unknown(serving, _members([asked])):
                await self.encode(serving, _members([asked]))
                since = time.perf_counter()  # until now it was not waiting for the event loop
            if not self._waiting:
                self._gathered = 0
                loop.call_soon(self._flush)
            self.delay.wait()
            waiting = _Asked(asked, loop.create_future(), since)
            self._waiting.append(waiting)
            prediction = await waiting.answer
            if prediction is not None:  # otherwise another model serves by now, which has not seen these jobs
                return prediction

    async def predict_many(self, asked: list[ColocationSet]) -> list[Prediction]:
        """Predict many sets with one model, corrected by feedback.

        Raises:
            CotenantError: as `predict`, for any of the sets.
        """
        answers: list[Prediction] = []
        await self.each_part(asked, answers.extend)
        return answers

    async def predict_each(self, asked: list[ColocationSet]) -> list[Prediction | InputError]:
        """Like `predict_many`, but the answer to a set that cannot be predicted is its error."""
        try:
            return list(await self.predict_many(asked))
        except InputError as error:
            if len(asked) == 1:
                return [error]
        half = len(asked) // 2
        return [*await self.predict_each(asked[:half]), *await self.predict_each(asked[half:])]

    async def each_part(
        self, asked: list[ColocationSet], use: Callable[[list[Prediction]], Any]
    ) -> list[Any]:
        """Predict many sets in parts, with one model and corrected; returns what `use` makes of each, in order.

        Args:
            use: called where the part is predicted: on the event loop if it is the only one, else in a lane.
        """
        belief = self.belief()
        self._renew_if_full(belief.serving)
        await self.encode(belief.serving, _members(asked))

        def answer(sets: list[ColocationSet]) -> Any:
            return use(belief.posterior.predict_many(sets))

        parts = [asked[first : first + _INLINE_SETS] for first in range(0, len(asked), _INLINE_SETS)]
        if len(parts) == 1:
            return [answer(parts[0])]
        return [await self.bulk.run(answer, part) for part in parts]

    async def plain(self, serving: Serving, asked: list[ColocationSet]) -> list[Prediction]:
        """Predictions of the model itself, without feedback."""
        await self.encode(serving, _members(asked))
        return await self._in_parts(serving.predictor.predict_many, asked)

    async def corrected(self, belief: Belief, asked: list[ColocationSet]) -> list[Prediction]:
        """The predictions of a model that has seen these jobs, corrected by the observations so far."""
        return await self._in_parts(belief.posterior.predict_many, asked)

    async def _in_parts(
        self, predict: Callable[[list[ColocationSet]], list[Prediction]], asked: list[ColocationSet]
    ) -> list[Prediction]:
        answers: list[Prediction] = []
        for first in range(0, len(asked), _INLINE_SETS):
            answers += await self.bulk.run(predict, asked[first : first + _INLINE_SETS])
        return answers

    async def meet(
        self,
        serving: Serving,
        snapshot: ClusterSnapshot,
        job: Workload,
        admit: Callable[[set[Workload], set[str]], Awaitable[None]],
    ) -> None:
        """Encode the job and the tenants of a cluster that the model has not seen.

        These are `job` on every device type of `snapshot` that supports its precision and is fast enough, and all
        tenants on theirs, except the `unpredictable` ones.

        Args:
            admit: checks names before anything is encoded.
        """
        met, looked_at, kinds = self._met, snapshot.nodes, set[tuple[str, str]]()
        if met is not None and met[1] is serving:
            changed = changed_nodes(met[0], snapshot)
            if changed is not None:  # tenants on other nodes were seen before
                looked_at, kinds = tuple(snapshot.nodes[k] for k in changed), met[2]
        present, tenants = await self.apart(sum(len(n.gpus) for n in looked_at), _present, looked_at)
        kinds = kinds | present
        told = self.unpredictable(serving).keys()
        tenants -= told
        own = [(device, sharing, job) for device, sharing in sorted(kinds) if runs_on(device, job.precision)]
        own = [key for key in own if key not in told]
        new = self.unknown(serving, [*own, *tenants])
        if new:
            await admit({w for _, _, w in new}, {device for device, _, _ in new})
            await self._meet_all(serving, self.unknown(serving, own), TooSlowError)
            await self._meet_all(serving, self.unknown(serving, tenants), InputError)
        self._met = (snapshot, serving, kinds)

    async def _meet_all(self, serving: Serving, jobs: list[Encoded], passed_over: type[InputError]) -> None:
        """Encode jobs; those that cannot be predicted, with an error `passed_over`, become `unpredictable`."""
        sets = [ColocationSet(device, (workload,), sharing) for device, sharing, workload in jobs]
        try:
            await self.encode(serving, jobs)
            if sets and passed_over is InputError:  # decisions check the others
                await self.bulk.run(_check_alone, serving, sets)
        except UnknownNameError:
            raise
        except passed_over as error:
            if len(jobs) > 1:
                for job in jobs:
                    await self._meet_all(serving, [job], passed_over)
                return
            told = self.unpredictable(serving)
            if len(told) >= self.jobs:
                told.clear()
            told[jobs[0]] = error.message
            log.warning("job that cannot be predicted", job=str(jobs[0][2])[:200], error=error.message)

    def unpredictable(self, serving: Serving) -> dict[Encoded, str]:
        """Jobs that the model could not predict when `meet` tried, with the reason."""
        if self._unpredictable[0] is not serving:
            self._unpredictable = serving, {}
        return self._unpredictable[1]

    async def off_loop(self, size_bytes: int, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` here if the body that it reads is small, otherwise in a lane."""
        if size_bytes <= INLINE_BYTES:
            return function(*arguments)
        return await self.bulk.run(function, *arguments)

    async def apart(self, count: int, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` here if it handles few sets or GPUs, otherwise in a lane."""
        if count <= _INLINE_SETS:
            return function(*arguments)
        return await self.bulk.run(function, *arguments)

    def _flush(self) -> None:
        """Answer one batch of the waiting sets; what does not fit is left to the loop's next turn."""
        turn_s = _BUSY_TURN_S if self.delay.shedding else _TURN_S
        count = max(_FEWEST, min(_MOST, round(turn_s / self._set_s)))
        if self._gathered < len(self._waiting) < count:
            # This turn brought more, so the next one may too; a set costs half as much in a batch.
            self._gathered = len(self._waiting)
            asyncio.get_running_loop().call_soon(self._flush)
            return
        together, self._waiting = self._waiting[:count], self._waiting[count:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        # Not wall time: smaller batches would not give back what other processes take of the core.
        started = time.thread_time()
        self._answer([waiting for waiting in together if not waiting.answer.done()])
        self._set_s += _WEIGHT * ((time.thread_time() - started) / len(together) - self._set_s)
        for waiting in together:
            self.delay.begun(waiting.since)

    def _answer(self, asked: list[_Asked]) -> None:
        known = asked
        try:
            belief = self.belief()
            known = [one for one in asked if not self.unknown(belief.serving, _members([one.set]))]
            sets = [one.set for one in known]
            answers = belief.posterior.predict_many(sets)
            self._renew_if_full(belief.serving)
        except Exception as error:
            # One set may be at fault. Anything but a CotenantError is a bug in the service, and slow for all
            # sets in the batch.
            if not isinstance(error, CotenantError):
                log.exception("sets that failed together are answered one by one", sets=len(known))
            self._one_by_one(known)
        else:
            for one, prediction in zip(known, answers, strict=True):
                one.answer.set_result(prediction)
        for one in asked:
            if not one.answer.done():
                one.answer.set_result(None)

    def _one_by_one(self, asked: list[_Asked]) -> None:
        """One bad set must not fail the whole batch."""
        for one in asked:
            try:
                belief = self.belief()
                one.answer.set_result(belief.posterior.predict(one.set))
            except Exception as error:
                one.answer.set_exception(error)

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        for lane in self.lanes:
            lane.close()


def _check_alone(serving: Serving, sets: list[ColocationSet]) -> None:
    """Raise `InputError` if decisions would refuse the solo predictions of these jobs."""
    check_predictions(sets, serving.predictor.predict_arrays(sets))


def _present(nodes: Sequence[Node]) -> tuple[set[tuple[str, str]], set[Encoded]]:
    """Device types with their sharing modes, and tenants with theirs."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    tenants = {(g.device, g.sharing, t.job) for g in gpus for t in g.tenants}
    return {(g.device, g.sharing) for g in gpus}, tenants


def _members(sets: Iterable[ColocationSet]) -> Iterable[Encoded]:
    return ((s.device, s.sharing, workload) for s in sets for workload in s.workloads)
