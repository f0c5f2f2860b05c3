import random
import threading
import time

from thinwire.comm import Lane


def test_order_is_that_of_reservation_whatever_the_order_of_readiness():
    lane, num_places, num_threads = Lane(), 400, 4
    places = [lane.reserve() for _ in range(num_places)]
    assert places == list(range(num_places))
    random.Random(0).shuffle(places)
    started: list[int] = []
    inside = threading.Lock()

    def start(place: int) -> None:
        assert inside.acquire(blocking=False), "two collectives of a lane were started at the same time"
        time.sleep(1e-5)
        started.append(place)
        inside.release()

    def issue(own: list[int]) -> None:
        for place in own:
            lane.issue(place, lambda place=place: start(place))

    threads = [threading.Thread(target=issue, args=(places[i::num_threads],)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started == list(range(num_places))


def test_what_is_ready_early_waits_and_what_is_next_does_not():
    lane, started = Lane(), []
    first, second, third = (lane.reserve() for _ in range(3))
    lane.issue(second, lambda: started.append("second"))
    assert started == []
    lane.issue(first, lambda: started.append("first"))
    assert started == ["first", "second"]
    lane.issue(third, lambda: started.append("third"))
    assert started == ["first", "second", "third"]
    lane.issue(lane.reserve(), lambda: started.append("fourth"))
    assert started[-1] == "fourth"
