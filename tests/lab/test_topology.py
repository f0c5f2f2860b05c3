from thinwire.lab import LinkShape
from thinwire.lab.topology import MAX_WORKERS, address, plan


def test_every_direction_of_every_link_is_shaped() -> None:
    commands = plan(3, LinkShape.parse(rate="200mbit"))
    for rank, worker in enumerate(commands["workers"]):
        assert sum(" tbf " in command and " wire0 " in command for command in worker["inside"]) == 1
        assert sum(" tbf " in command and f" port{rank} " in command for command in worker["outside"]) == 1


def test_links_are_shaped_before_they_are_up() -> None:
    for worker in plan(2, LinkShape.parse(rate="200mbit"))["workers"]:
        for commands in worker.values():
            assert commands[-1].endswith(" up")
            assert commands[-2].startswith("tc ")


def test_addresses_are_distinct_and_valid() -> None:
    addresses = {address(rank) for rank in range(MAX_WORKERS)}
    assert len(addresses) == MAX_WORKERS
    assert all(0 < int(text.rsplit(".")[-1]) < 255 for text in addresses)
