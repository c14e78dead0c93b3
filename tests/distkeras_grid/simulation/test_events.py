import math

from distkeras_grid.simulation.events import EventQueue, SimulatedLink


def test_of_several_events_at_one_time_the_first_foreseen_comes_first():
    queue = EventQueue()
    for worker in (2, 0, 1):
        queue.add(1.0, "reply", worker, 0)
    queue.add(0.5, "join", 3, 0)
    assert [queue.pop().worker for _ in range(4)] == [3, 2, 0, 1]
    assert not queue


def test_what_is_infinitely_far_away_never_happens():
    queue = EventQueue()
    queue.add(math.inf, "join", 0, 0)
    assert not queue


def test_a_message_waits_for_those_before_it_and_for_its_own_link():
    link = SimulatedLink(bandwidth=100.0, worker_bandwidth=50.0, latency=1.0)
    assert link.pass_through(100, now=0.0) == 3.0, "its own link is the slower one"
    assert link.pass_through(100, now=0.0) == 3.0, "the server's was free again at 2 s"
    assert link.pass_through(100, now=0.0) == 4.0
    assert link.pass_through(0, now=10.0) == 11.0
