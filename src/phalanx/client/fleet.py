"""What is asked about the fleet: its nodes, how it is shared, what it was used for; and what is kept there."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.client import artifacts as artifact_files
from phalanx.client.checks import checked_secret, job_path, model_path, node_path, queue_path
from phalanx.client.steps import JSON, Answer, Ask, Do, Program, decoded, post, read, read_all
from phalanx.core import wire
from phalanx.core.errors import NotFound
from phalanx.core.use_views import DeliveryView, EndedDeliveryView, QueueShareRequest, QuotaView, UsageView
from phalanx.core.views import (
    ArtifactView,
    DrainRequest,
    GcRequest,
    GcView,
    JoinRequest,
    JoinTokenRequest,
    JoinTokenView,
    KeyRotatedView,
    LedgerView,
    MembershipView,
    ModelView,
    NodeView,
    PolicyRequest,
    PolicyView,
    QueueView,
    SecretView,
    StatusView,
)


def status() -> Program[StatusView]:
    """The platform at a glance."""
    return (yield from read(StatusView, "/status"))


def snapshot() -> Program[bytes]:
    """All that the newest decision was made from, as JSON for `phalanx sim replay`."""
    answer: Answer = yield Ask(method="GET", path="/snapshot")
    return answer.content


def nodes() -> Program[tuple[NodeView, ...]]:
    """Every known node, by name."""
    return (yield from read_all(NodeView, "/nodes"))


def node(node: str) -> Program[NodeView]:
    """One node, with its tag. Raises NotFound."""
    return (yield from read(NodeView, node_path(node)))


def drain(node: str, reason: str, now: bool = False) -> Program[NodeView]:
    """Places nothing new on the node; with `now` its gangs are stopped and start again elsewhere."""
    body = wire.dumps(DrainRequest, DrainRequest(reason=reason, now=now))
    return (yield from post(NodeView, f"{node_path(node)}/drain", body, may_repeat=True))


def undrain(node: str) -> Program[NodeView]:
    """The node may be given work again."""
    return (yield from post(NodeView, f"{node_path(node)}/undrain", may_repeat=True))


def policy() -> Program[PolicyView]:
    """How the fleet is shared."""
    return (yield from read(PolicyView, "/policy"))


def set_policy(policy: Mapping[str, Any], dry_run: bool = False, tag: str = "") -> Program[PolicyView]:
    """Puts `policy`, as a policy file has it, in the place of the whole one; `dry_run` only checks it. tag: of the one that was
    read, from its view. Raises SpecError, and Stale where another than that one is in force."""
    body = wire.dumps(PolicyRequest, PolicyRequest(policy=policy, dry_run=dry_run))
    headers = {**JSON, "If-Match": tag} if tag else JSON
    # With a tag it is not sent again after a lost answer: it would find what it put there itself.
    answer: Answer = yield Ask(method="PUT", path="/policy", content=body, headers=headers, may_repeat=not tag)
    view: PolicyView = decoded(PolicyView, answer)
    return view


def queues() -> Program[tuple[QueueView, ...]]:
    """Every queue that is configured, has jobs or has had devices, each with those below it."""
    return (yield from read_all(QueueView, "/queues"))


def queue(queue: str) -> Program[QueueView]:
    """One of them. Raises NotFound."""
    return (yield from read(QueueView, queue_path(queue)))


def part_queue(
    queue: str,
    *,
    weight: float | None = None,
    quota: Mapping[str, int] | None = None,
    limit: Mapping[str, int] | None = None,
    tag: str = "",
) -> Program[PolicyView]:
    """Another weight, quota or limit of a queue; each takes the place of what was there, None leaves it. tag: of the policy that
    was read, from its view. Raises SpecError, Forbidden, NotFound, and Stale where another than that policy is in force."""
    body = wire.dumps(QueueShareRequest, QueueShareRequest(weight=weight, quota=quota, limit=limit))
    headers = {**JSON, "If-Match": tag} if tag else JSON
    answer: Answer = yield Ask(method="PATCH", path=queue_path(queue), content=body, headers=headers, may_repeat=not tag)
    view: PolicyView = decoded(PolicyView, answer)
    return view


def quotas() -> Program[tuple[QuotaView, ...]]:
    """What each queue holds and may have of each type of device."""
    return (yield from read_all(QuotaView, "/quotas"))


def usage(by: str = "queue", since_ms: int | None = None, until_ms: int | None = None) -> Program[tuple[UsageView, ...]]:
    """Device time of a window, the last 30 days without bounds, of each queue, or with `by` 'job' of each job."""
    return (yield from read(tuple[UsageView, ...], "/usage", {"by": by, "since_ms": since_ms, "until_ms": until_ms}))


def ledger(job: str = "", since_ms: int | None = None, until_ms: int | None = None) -> Program[LedgerView]:
    """Device time of a window, of one job or of everything."""
    name = job_path(job).rpartition("/")[2] if job else ""
    return (yield from read(LedgerView, "/ledger", {"job": name, "since_ms": since_ms, "until_ms": until_ms}))


def deliveries() -> Program[tuple[DeliveryView, ...]]:
    """What no webhook has accepted yet, oldest first."""
    return (yield from read_all(DeliveryView, "/webhooks/deliveries"))


def ended_deliveries(limit: int | None = 100) -> Program[tuple[EndedDeliveryView, ...]]:
    """What webhooks have accepted, or was given up, newest first; None is all that is kept: of each webhook the last 100."""
    return (yield from read_all(EndedDeliveryView, "/webhooks/history", limit=limit))


def redeliver(delivery: int) -> Program[DeliveryView]:
    """It, and what waits for the same receiver, is sent again now. Raises NotFound once it was accepted or given up."""
    return (yield from post(DeliveryView, f"/webhooks/deliveries/{int(delivery)}/redeliver", may_repeat=True))


def make_join_token(lifetime_ms: int) -> Program[JoinTokenView]:
    """A token that lets one node join. It is not told again: whoever loses the answer makes another."""
    body = wire.dumps(JoinTokenRequest, JoinTokenRequest(lifetime_ms=lifetime_ms))
    return (yield from post(JoinTokenView, "/agent/tokens", body))


def join(node: str, credential_sha256: str) -> Program[MembershipView]:
    """With a join token as this client's token: lets the credential of that hash stand for `node`. Twice is once."""
    body = wire.dumps(JoinRequest, JoinRequest(node=node, credential_sha256=credential_sha256))
    return (yield from post(MembershipView, "/agent/join", body, may_repeat=True))


def membership() -> Program[MembershipView]:
    """With a node's credential as this client's token: which node it stands for. Raises Unauthorized when for none."""
    return (yield from read(MembershipView, "/agent/membership"))


def revoke_node(node: str) -> Program[None]:
    """The credential by which the node joined opens nothing any more. Raises NotFound when there is none."""
    yield Ask(method="DELETE", path=node_path(node, "/agent/credentials"), may_repeat=False)


def collect(older_than: str = "30d", dry_run: bool = False) -> Program[GcView]:
    """Begins to remove what jobs left that finished that long ago; `collection` shows how it goes. Raises Conflict while
    another collection runs."""
    return (yield from post(GcView, "/gc", wire.dumps(GcRequest, GcRequest(older_than=older_than, dry_run=dry_run))))


def collection() -> Program[GcView]:
    """The collection that runs, or the last one since the server started."""
    return (yield from read(GcView, "/gc"))


def models(name: str = "") -> Program[tuple[ModelView, ...]]:
    """Every version of every model, or of the named one."""
    return (yield from read_all(ModelView, model_path(name) if name else "/models"))


def model(name: str, version: int | None = None) -> Program[ModelView]:
    """One version; without a number the newest."""
    if version is not None:
        return (yield from read(ModelView, f"{model_path(name)}/{int(version)}"))
    versions = yield from read_all(ModelView, model_path(name))
    if not versions:
        raise NotFound("model", name, "no such model; `phalanx model ls` shows what there is")
    return max(versions, key=lambda one: one.version)


def artifacts(job: str, attempt: str = "") -> Program[tuple[ArtifactView, ...]]:
    """Newest version of each file that ranks gave, of all attempts or of one; by attempt and name."""
    return (yield from read_all(ArtifactView, f"{job_path(job)}/artifacts", {"attempt": attempt}))


def artifact(job: str, name: str, attempt: str = "") -> Program[ArtifactView]:
    """The file of that name, of the newest attempt that has it or of `attempt`. Raises NotFound."""
    return (yield from read(ArtifactView, f"{job_path(job)}/artifact", {"name": name, "attempt": attempt}))


def save_artifact(artifact: ArtifactView, out: Path, force: bool = False) -> Program[None]:
    """Writes its bytes to `out`, checked, whole or not at all. Raises Conflict where something is already and not `force`."""
    artifact_files.refuse_taken(out, force)
    answer: Answer = yield Ask(method="GET", path=f"/blobs/{artifact.sha256}")
    yield Do(partial(artifact_files.save, artifact, answer.content, out, answer.url))


def secrets() -> Program[tuple[SecretView, ...]]:
    """Names and dates of the stored secrets; no call gives a value back."""
    return (yield from read_all(SecretView, "/secrets"))


def set_secret(name: str, value: bytes, team: str = "") -> Program[None]:
    """Stores `value` under `name`, in place of an older one. team: whose it is; '' is the caller's only team, or the platform's
    own. Raises SpecError, without the value in it."""
    headers, path = {"Content-Type": "application/octet-stream"}, f"/secrets/{checked_secret(name)}"
    yield Ask(method="PUT", path=path, params={"team": team}, content=value, headers=headers)


def rotate_secret_key() -> Program[KeyRotatedView]:
    """Seals every stored value anew with a fresh key. Raises SetupError where the present key does not open them."""
    return (yield from post(KeyRotatedView, "/secret-key/rotate", may_repeat=True))


def remove_secret(name: str, team: str = "") -> Program[None]:
    """Raises NotFound when it is not stored."""
    yield Ask(method="DELETE", path=f"/secrets/{checked_secret(name)}", params={"team": team}, may_repeat=False)
