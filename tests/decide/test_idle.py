"""P12: no live user, silent cell or unknown signal is ever idle; a stalled loop is; whoever is there is warned first."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.activity import Signal, SignalName
from phalanx.decide.idle import Active, IdlePolicy, Sighted, Stop, Verdict, Warned, idle

MIN = 60_000
HALF_HOUR = IdlePolicy(30 * MIN)


def told(*signals: tuple[SignalName, int | None]) -> list[Sighted]:
    """Minutes since each; the look was at minute 1000."""
    return [Sighted(Signal(name, None if age is None else age * MIN), 1000 * MIN) for name, age in signals]


def at(minute: int, signals: list[Sighted], warned: int | None = None, policy: IdlePolicy = HALF_HOUR) -> Verdict:
    return idle(minute * MIN, signals, policy, None if warned is None else warned * MIN)


def test_p12_a_silent_five_hour_cell_is_not_idle() -> None:
    """Its kernel is busy, and nothing else shows anything."""
    assert isinstance(at(1000, told(("kernel", 0), ("cpu", 300), ("gpu", 300), ("connections", 300))), Active)


def test_p12_a_live_user_who_types_is_not_idle() -> None:
    assert isinstance(at(1000, told(("terminal", 1), ("cpu", 300), ("gpu", 300))), Active)


def test_p12_a_stalled_loop_with_an_idle_kernel_is_idle() -> None:
    stalled = told(("kernel", 40), ("cpu", 41), ("gpu", 42))
    assert isinstance(at(1000, stalled), Warned)
    assert at(1005, stalled, warned=1000) == Stop("kernel: 45m 00s ago; cpu: 46m 00s ago; gpu: 47m 00s ago")


def test_p12_what_is_not_known_counts_as_active() -> None:
    assert at(1000, told(("kernel", None), ("cpu", 400))) == Active("kernel: not known")
    assert isinstance(at(1000, told(("cpu", 400), ("gpu", None)), warned=900), Active)
    assert at(1000, []) == Active("nothing is known of it")


def test_p12_a_warning_comes_five_minutes_before_and_then_the_stop() -> None:
    left = told(("terminal", 0))
    assert isinstance(at(1024, left), Active)
    assert at(1025, left) == Warned(5 * MIN, "terminal: 25m 00s ago")
    assert at(1028, left, warned=1025) == Warned(2 * MIN, "terminal: 28m 00s ago")
    assert isinstance(at(1030, left, warned=1025), Stop)


def test_p12_a_late_warning_still_leaves_its_five_minutes() -> None:
    """As after a restart of the control plane, which knows of no warning."""
    left = told(("terminal", 300))
    assert at(1000, left) == Warned(5 * MIN, "terminal: 5h 00m ago")
    assert isinstance(at(1004, left, warned=1000), Warned)
    assert isinstance(at(1005, left, warned=1000), Stop)


def test_p12_activity_after_the_warning_cancels_it() -> None:
    typed = [Sighted(Signal("terminal", 0), 1028 * MIN)]
    assert isinstance(at(1030, typed, warned=1025), Active)


def test_zero_is_never_and_a_short_timeout_warns_at_its_half() -> None:
    old = told(("terminal", 100_000))
    assert isinstance(at(1000, old, warned=900, policy=IdlePolicy(0)), Active)
    assert at(1001, told(("terminal", 0)), policy=IdlePolicy(2 * MIN)) == Warned(MIN, "terminal: 1m 00s ago")


names: st.SearchStrategy[SignalName] = st.sampled_from(["kernel", "gpu", "cpu", "terminal", "connections", "files"])
ages = st.none() | st.integers(0, 100 * MIN)


@given(st.lists(st.tuples(names, ages)), st.integers(0, 100 * MIN), st.none() | st.integers(0, 100 * MIN))
def test_p12_nothing_stops_unwarned_or_with_a_young_or_unknown_signal(
    signals: list[tuple[SignalName, int | None]], now_ms: int, warned_ms: int | None
) -> None:
    seen = [Sighted(Signal(name, age), 0) for name, age in signals]
    if isinstance(idle(now_ms, seen, HALF_HOUR, warned_ms), Stop):
        assert seen
        assert warned_ms is not None
        assert now_ms - warned_ms >= 5 * MIN
        assert all(age is not None and now_ms + age >= 30 * MIN for _, age in signals)
