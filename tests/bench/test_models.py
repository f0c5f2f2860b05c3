import pytest
import torch

from tests.bench.given import users_model
from thinwire.bench.models import BUILT_IN
from thinwire.bench.workload import make_workload


def numel(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "millions"), [("lm", (10, 12)), ("vgg", (20, 50)), ("resnet", (1, 3)), ("mlp", (16.8, 17))]
)
def test_a_built_in_model_trains_on_its_data(name, millions):
    torch.manual_seed(0)
    model, batch, loss = make_workload(name, 2)
    assert millions[0] < numel(model) / 1e6 < millions[1]
    inputs, targets = batch(3, 1)
    assert len(inputs) == len(targets) == 2
    value = loss(model(inputs), targets)
    value.backward()
    assert 0 < value.item() < 20
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", BUILT_IN)
def test_batches_depend_on_step_and_rank_alone(name):
    first, again = make_workload(name, 2)[1], make_workload(name, 2)[1]
    assert all(map(torch.equal, first(5, 1), again(5, 1)))
    assert not torch.equal(first(5, 1)[0], first(5, 0)[0])
    assert not torch.equal(first(5, 1)[0], first(6, 1)[0])


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_same_seed_makes_the_same_model(name):
    def parameters():
        torch.manual_seed(7)
        return make_workload(name, None)[0].parameters()

    assert all(map(torch.equal, parameters(), parameters()))


def test_most_parameters_are_where_they_should_be():
    vgg, mlp = make_workload("vgg", 1)[0], make_workload("mlp", 1)[0]
    linear = sum(numel(layer) for layer in vgg if isinstance(layer, torch.nn.Linear))
    assert linear > 0.95 * numel(vgg)
    assert max(p.numel() for p in mlp.parameters()) == 4096 * 4096 > 0.95 * numel(mlp)


def test_a_users_function_is_called(tmp_path):
    model, batch, loss = make_workload(users_model(tmp_path), None)
    inputs, targets = batch(0, 0)
    assert isinstance(inputs, tuple)
    assert loss(model(*inputs), targets).item() > 0


def test_a_function_that_returns_something_else_is_told_what_to_return(tmp_path):
    with pytest.raises(ValueError, match=r"returned Sum; .*\(model, batch, loss\)"):
        make_workload(users_model(tmp_path, "wrong"), None)
