"""Schemas of request and response bodies, decoded by msgspec and shown in OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from profiling.errors import CotenantError, LimitError
from profiling.workload import ColocationSet, Workload
from serving.job_ranges import RANGES, SPEC_LENGTH, parse_job


def _range(name: str) -> Meta:
    least, most = RANGES[name]
    return Meta(ge=least, le=most)


Name = Annotated[str, Meta(min_length=1, max_length=200)]
# PostgreSQL stores no NUL; one among placements that are written together would fail them all.
_STORABLE = r"^[^\x00]*$"
GpuId = Annotated[str, Meta(min_length=1, max_length=200, pattern=_STORABLE)]
JobId = Annotated[str, Meta(max_length=200, pattern=_STORABLE)]
NodeName = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="Part of the node's URL: no '/', no control characters", examples=["node-a"]),
]  # fmt: skip
Spec = Annotated[
    str,
    Meta(min_length=1, max_length=SPEC_LENGTH, description="Job SPEC: NAME[:key=value,...]", examples=["resnet18-cifar:batch_size=64"]),
]  # fmt: skip
Ratio = Annotated[float, Meta(ge=0, le=1)]
StepTime = Annotated[float, _range("step_time_s")]
Iterations = Annotated[float, _range("iterations")]
IterationsLeft = Annotated[float, _range("iterations_left")]
MaxSlowdown = Annotated[float, _range("max_slowdown")]
Sharing = Literal["time-slice", "mps", "mig"]
Objective = Literal["jct", "interference", "makespan"]
PlacementState = Literal["waiting", "decided", "confirmed", "ended", "expired"]


class Job(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A training job. `workload` is a zoo name or `graph:HASH` of a registered graph."""

    workload: Name
    batch_size: Annotated[int, _range("batch_size")] | None = None
    sequence_length: Annotated[int, _range("sequence_length")] | None = None
    image_size: Annotated[int, _range("image_size")] | None = None
    mode: Literal["training", "inference"] = "training"
    precision: Literal["fp32", "tf32", "amp", "fp16", "bf16", "fp8", "fp64"] = "fp32"
    framework: Literal["torch", "tensorflow"] = "torch"
    compiler: Literal["eager", "compile"] = "eager"
    memory_layout: Literal["contiguous", "channels-last"] = "contiguous"
    data_on_device: bool = False
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "none"] | None = None
    frozen_prefix: Annotated[int, _range("frozen_prefix")] = 0
    gradient_accumulation: Annotated[int, _range("gradient_accumulation")] = 1
    activation_checkpointing: bool = False
    sm_share_ratio: Annotated[float, _range("sm_share_ratio")] = 1.0
    step_time_s: StepTime | None = None
    memory_bytes: Annotated[float, _range("memory_bytes")] | None = None
    utilization_ratio: Ratio | None = None
    memory_bandwidth_ratio: Ratio | None = None


JobLike = Spec | Job


class SetBody(Struct, forbid_unknown_fields=True):
    """A co-location set: the jobs that run on one device at the same time."""

    device: Name
    jobs: Annotated[list[JobLike], Meta(min_length=1, max_length=1024)]
    sharing: Sharing = "time-slice"


class BatchBody(Struct, forbid_unknown_fields=True):
    """Many co-location sets, predicted in one call."""

    sets: Annotated[list[SetBody], Meta(min_length=1)]


class TenantBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job that runs on a GPU; `placement_id` if the service placed it.

    Without `iterations_left` it is assumed to have an hour left, alone on its GPU. `gpu_uuid` is what the job itself has
    said (`PUT /v1/cluster/tenants`), and is not changed by a body that has another.
    """

    job: JobLike
    iterations_left: IterationsLeft | None = None
    job_id: JobId = ""
    max_slowdown: MaxSlowdown | None = None
    placement_id: Annotated[str, Meta(max_length=32)] | UnsetType = UNSET
    gpu_uuid: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET


class GpuBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU (`count` repeats it).

    With `tenants_assumed`, the tenants may be on another GPU of the node, or not have started.
    """

    device: Name
    id: GpuId | int | UnsetType = UNSET
    sharing: Sharing = "time-slice"
    tenants: Annotated[list[TenantBody], Meta(max_length=1024)] = []
    tenants_assumed: bool = False
    count: Annotated[int, Meta(ge=1, le=1024)] | UnsetType = UNSET


class NodeBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One node (`count` repeats it)."""

    name: NodeName | UnsetType = UNSET
    gpus: list[GpuBody] = []
    count: Annotated[int, Meta(ge=1, le=100_000)] | UnsetType = UNSET


class LinkBody(Struct, forbid_unknown_fields=True):
    """A network link, one direction."""

    source: Name
    target: Name
    bandwidth_bytes_per_s: Annotated[float, _range("bandwidth_bytes_per_s")]


class ClusterBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Nodes, their GPUs, what runs where."""

    nodes: list[NodeBody]
    links: list[LinkBody] = []


class PlaceBody(Struct, forbid_unknown_fields=True):
    """A job, or a queue of jobs in order, and the cluster; without `cluster` the stored one is used."""

    job: JobLike | UnsetType = UNSET
    jobs: Annotated[list[JobLike], Meta(min_length=1)] | UnsetType = UNSET
    cluster: ClusterBody | UnsetType = UNSET
    iterations: Iterations | None = None
    objective: Objective = "jct"
    max_slowdown: MaxSlowdown = 2.0


class Quantity(Struct):
    """A value with its 90 % interval, in the unit given by the field's name."""

    value: float
    lower: float
    upper: float


class Member(Struct):
    """One job of a predicted set."""

    job: str
    solo_step_time_s: Quantity
    step_time_s: Quantity
    slowdown: Quantity
    throughput_ratio: Quantity
    memory_bytes: Quantity
    utilization_ratio: Quantity
    in_domain: bool


class PredictionAnswer(Struct):
    """The prediction for a co-location set."""

    device: str
    sharing: Sharing
    model_version: str
    members: list[Member]
    total_memory_bytes: Quantity
    total_utilization_ratio: Quantity
    fits: bool
    reasons: list[str]
    never_measured: list[str]


class BatchAnswer(Struct):
    predictions: list[PredictionAnswer]


class RankedAnswer(Struct):
    """One GPU that can take the job now; the lowest `score` is best."""

    node: str
    gpu: str
    score: float
    finish_s: float
    delays_s: dict[str, float]
    reasons: list[str]


class DecisionAnswer(Struct):
    """Ranked GPUs, best first, or advice to wait; `wait_s` is how long, if a departure is worth waiting for.

    `iterations` is the assumed number of steps: as given, or an hour's worth if the length is unknown.
    `never_measured` says what was never measured of the job on the first of `ranked`, as in `/v1/predict`; decisions
    stored by earlier versions lack it.
    """

    decision: Literal["place", "wait"]
    ranked: list[RankedAnswer]
    reasons: list[str]
    never_measured: list[str] = []
    wait_s: float | UnsetType = UNSET
    iterations: float | UnsetType = UNSET


class QueuedAnswer(DecisionAnswer):
    """The decision about one job of a queue; `infeasible` if it fits on no GPU of the cluster, even alone.

    Waiting would not help such a job, which is refused with a 409 if it is asked about by itself.
    """

    decision: Literal["place", "wait", "infeasible"]  # type: ignore[assignment]


class QueueAnswer(Struct):
    """One decision per job, in the order of the queue."""

    decisions: list[QueuedAnswer]


class RegisterBody(Job, forbid_unknown_fields=True, omit_defaults=True):  # type: ignore[call-arg]
    """A zoo model with its options, or a computation graph as a field."""

    workload: Name | UnsetType = UNSET  # type: ignore[assignment]
    graph: dict[str, Any] | UnsetType = UNSET

    def job(self) -> Job:
        values = structs.asdict(self)
        del values["graph"]
        return Job(**values)


class GraphFile(Struct):
    """A computation graph, as written by `cotenant capture -o`; its other fields are read by
    `ComputationGraph`."""

    format: Literal["cotenant-graph"]
    version: int


class WorkloadEntry(Struct):
    """A registered workload; `workload` is the name to use in jobs."""

    workload: str
    hash: str
    name: str
    kind: Literal["zoo", "onnx", "graph"]
    created_at: float
    summary: dict[str, Any]


class Page(Struct):
    """One page of a list; repeat the request with `after` = `next` until it is null."""

    items: list[Any]
    next: str | None

    @staticmethod
    def of(items: list[Any], limit: int, key: Callable[[Any], str]) -> Page:
        """A page of up to `limit` of `items`, which has one more if there is a next page."""
        return Page(items[:limit], key(items[limit - 1]) if len(items) > limit else None)


class PlacementBody(Struct, forbid_unknown_fields=True):
    """A job to be placed on the stored cluster."""

    job: JobLike
    job_id: JobId = ""
    iterations: Iterations | None = None
    objective: Objective = "jct"
    max_slowdown: MaxSlowdown = 2.0


class ProgressBody(Struct, forbid_unknown_fields=True):
    """Progress of a placed job."""

    iterations_left: IterationsLeft


class PlacementEntry(Struct):
    """A decision and its state; `expires_at` is when an unconfirmed one frees its GPU.

    `stale`: confirmed, but neither it nor its node has reported for a while.
    """

    id: str
    sequence: int
    job: str
    job_id: str
    iterations: float | None
    max_slowdown: float | None
    state: PlacementState
    stale: bool
    node: str | None
    gpu: str | None
    decision: DecisionAnswer
    model_version: str
    cluster_version: int
    created_at: float
    updated_at: float
    expires_at: float | None


class PlacementPage(Struct):
    items: list[PlacementEntry]
    next: str | None


class ClusterAnswer(Struct):
    """The stored cluster and its version; the ETag also tells progress reports apart.

    It is outdated from `valid_until` on (seconds since 1970); null: never.
    """

    version: int
    cluster: ClusterBody
    valid_until: float | None = None


class NodeAnswer(Struct):
    version: int
    node: NodeBody


class VersionAnswer(Struct):
    version: int


class WorkloadPage(Struct):
    items: list[WorkloadEntry]
    next: str | None


def job_of(value: str | Job) -> Workload:
    """The workload described by a job in a body. Raises `InputError`."""
    if isinstance(value, str):
        return parse_job(value)
    return Workload.from_mapping(structs.asdict(value))


def set_of(body: SetBody, limit: int) -> ColocationSet:
    """The co-location set described by a body. Raises `InputError`, `LimitError`."""
    if len(body.jobs) > limit:
        raise LimitError(
            "a co-location set is too large", expected=f"at most {limit} jobs", got=len(body.jobs)
        )
    return ColocationSet(body.device, tuple(map(job_of, body.jobs)), body.sharing)


def sets_of(bodies: Sequence[SetBody], limit: int, where: str) -> list[ColocationSet]:
    """The same for many; errors name the set by its number, with `where`."""
    sets = []
    for number, body in enumerate(bodies):
        try:
            sets.append(set_of(body, limit))
        except CotenantError as error:
            raise error.at(where.format(number)) from None
    return sets
