"""Every method that both clients have, each from its one program."""

from phalanx.client import fleet as of_fleet
from phalanx.client import following
from phalanx.client import jobs as of_jobs
from phalanx.client.steps import Method, Values


class Methods:
    """Raises core.errors: a UserError with field, value and fix; ServerUnreachable or StoreUnavailable when the same call may be
    made again. Reading is repeated for about 1.5 s while a server starts again."""

    __slots__ = ()

    submit = Method(of_jobs.submit)
    jobs = Method(of_jobs.jobs)
    job = Method(of_jobs.job)
    attempts = Method(of_jobs.attempts)
    attempt = Method(of_jobs.attempt)
    why = Method(of_jobs.why)
    plan = Method(of_jobs.plan)
    cancel = Method(of_jobs.cancel)
    pause = Method(of_jobs.pause)
    resume = Method(of_jobs.resume)
    retry = Method(of_jobs.retry)
    chaos = Method(of_jobs.chaos)
    steps = Method(of_jobs.steps)
    curves = Method(of_jobs.curves)
    logs = Method(of_jobs.logs)
    runs = Method(of_jobs.runs)
    run = Method(of_jobs.run)
    run_metrics = Method(of_jobs.run_metrics)
    events = Method(of_jobs.events)
    profile = Method(of_jobs.profile)
    request_traces = Method(of_jobs.request_traces)
    trace_request = Method(of_jobs.trace_request)
    status = Method(of_fleet.status)
    snapshot = Method(of_fleet.snapshot)
    nodes = Method(of_fleet.nodes)
    node = Method(of_fleet.node)
    drain = Method(of_fleet.drain)
    undrain = Method(of_fleet.undrain)
    policy = Method(of_fleet.policy)
    set_policy = Method(of_fleet.set_policy)
    queues = Method(of_fleet.queues)
    queue = Method(of_fleet.queue)
    quotas = Method(of_fleet.quotas)
    usage = Method(of_fleet.usage)
    ledger = Method(of_fleet.ledger)
    deliveries = Method(of_fleet.deliveries)
    redeliver = Method(of_fleet.redeliver)
    make_join_token = Method(of_fleet.make_join_token)
    join = Method(of_fleet.join)
    membership = Method(of_fleet.membership)
    revoke_node = Method(of_fleet.revoke_node)
    collect = Method(of_fleet.collect)
    collection = Method(of_fleet.collection)
    models = Method(of_fleet.models)
    model = Method(of_fleet.model)
    artifacts = Method(of_fleet.artifacts)
    artifact = Method(of_fleet.artifact)
    save_artifact = Method(of_fleet.save_artifact)
    secrets = Method(of_fleet.secrets)
    set_secret = Method(of_fleet.set_secret)
    remove_secret = Method(of_fleet.remove_secret)
    wait = Method(following.wait)
    follow_logs = Values(following.follow_logs)
    log_end = Method(following.log_end)
    follow_traces = Values(following.follow_traces)
