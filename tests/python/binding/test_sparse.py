# SPDX-License-Identifier: Apache-2.0
"""Sparse matrices that need no gradient: an adjacency in the batch, closed over or a buffer."""

import pytest
import torch
from conftest import same
from test_parallel import run_ranks
from torch import nn

import shoal

NODES, EDGES, FEATURES, CLASSES = 12, 40, 6, 3


def adjacency(seed=0, kind="coo", rows=NODES, edges=EDGES):
    draw = torch.Generator().manual_seed(seed)
    where = torch.stack([torch.randint(size, (edges,), generator=draw) for size in (rows, NODES)])
    values = torch.rand(edges, generator=draw).double()
    matrix = torch.sparse_coo_tensor(where, values, (rows, NODES))  # some entries are there twice
    if kind == "uncoalesced":
        return matrix
    return {"coo": matrix.coalesce, "csr": matrix.to_sparse_csr, "csc": matrix.to_sparse_csc}[kind]()


def graph(seed=0, **options):
    draw = torch.Generator().manual_seed(100 + seed)
    return {
        "x": torch.randn(NODES, FEATURES, generator=draw).double(),
        "adj": adjacency(seed, **options),
        "y": torch.randint(CLASSES, (NODES,), generator=draw),
    }


class GraphConv(nn.Module):
    """As in PyTorch's examples/gcn."""

    def __init__(self, width, out):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(width, out))
        nn.init.xavier_normal_(self.kernel)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, features, adj):
        return torch.spmm(adj, torch.mm(features, self.kernel)) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first = GraphConv(FEATURES, 8)
        self.second = GraphConv(8, CLASSES)

    def forward(self, features, adj):
        return self.second(torch.relu(self.first(features, adj)), adj).log_softmax(1)


def loss_of(model, batch):
    return nn.functional.nll_loss(model(batch["x"], batch["adj"]), batch["y"])


@pytest.mark.parametrize("kind", ["coo", "uncoalesced", "csr", "csc"])
def test_a_graph_network_with_its_adjacency_in_the_batch(compare, kind):
    each = compare(GCN(), loss_of)
    each.run(graph(kind=kind))
    each.run(graph(1, kind=kind))  # another graph of as many edges
    each.run(graph(2, kind=kind, edges=17))


def test_an_adjacency_that_is_the_whole_batch(compare):
    model = nn.Linear(NODES, 4)
    compare(model, lambda model, adj: torch.sparse.mm(adj, model.weight.t()).square().mean()).run(adjacency())


class Propagates(nn.Module):
    def __init__(self, use, matrix):
        super().__init__()
        torch.manual_seed(4)
        self.linear = nn.Linear(FEATURES, NODES)
        self.adj = matrix
        self.use = use

    def forward(self, x):
        return self.use(self.adj, self.linear(x))


USES = {
    "mm": lambda adj, h: torch.mm(adj, h),
    "sparse.mm": lambda adj, h: torch.sparse.mm(adj, h),
    "@": lambda adj, h: adj @ h,
    "twice": lambda adj, h: adj @ (adj @ h),
    "transposed": lambda adj, h: adj.t() @ h,
    "transpose": lambda adj, h: adj.transpose(0, 1) @ h,
    "addmm": lambda adj, h: torch.addmm(h, adj, h, beta=0.5, alpha=2),
    "sparse.addmm": lambda adj, h: torch.sparse.addmm(h, adj, h, beta=2, alpha=0.5),
    "mv": lambda adj, h: torch.mv(adj, h[:, 1]),
    "@ of a vector": lambda adj, h: adj @ h[1],
    "to_dense": lambda adj, h: adj.to_dense() @ h,
    "coalesced": lambda adj, h: adj.coalesce() @ h,
    "its values": lambda adj, h: adj.values() * h.sum(),
    "scaled": lambda adj, h: (adj * 0.5) @ h,
    "made anew": lambda adj, h: torch.sparse_coo_tensor(adj.indices(), adj.values() * 2, adj.shape) @ h,
}


@pytest.mark.parametrize("use", USES)
def test_what_is_done_with_a_sparse_matrix(compare, use):
    compare(Propagates(USES[use], adjacency()), lambda model, x: model(x).square().mean()).run(graph()["x"])


@pytest.mark.parametrize("use", sorted(set(USES) - {"scaled"}))
def test_what_is_done_with_one_of_the_batch(compare, use):
    model = nn.Linear(FEATURES, NODES)
    compare(model, lambda model, batch: USES[use](batch["adj"], model(batch["x"])).square().mean()).run(
        graph()
    )


def test_dense_times_csr(compare):
    model = nn.Linear(FEATURES, NODES)
    compare(model, lambda model, batch: (model(batch["x"]) @ batch["adj"]).square().mean()).run(
        graph(kind="csr")
    )


def test_rows_are_as_many_as_they_are(compare):
    """A matrix that is not square, as of sampled neighbours."""
    each = compare(
        nn.Linear(FEATURES, 4), lambda model, batch: (batch["adj"] @ model(batch["x"])).square().mean()
    )
    each.run(graph(rows=5, kind="uncoalesced"))
    each.run(graph(rows=7, kind="uncoalesced"))  # of as many entries


@pytest.mark.parametrize("kind", ["coo", "csr"])
def test_one_that_is_closed_over_is_followed(compare, kind):
    held = {"adj": adjacency(kind=kind)}
    each = compare(GCN(), lambda model, batch: loss_of(model, {**batch, **held}))
    batch = {name: tensor for name, tensor in graph().items() if name != "adj"}
    each.run(batch)
    held["adj"] = adjacency(7, kind=kind)
    each.run(batch)
    held["adj"].values().mul_(3)
    each.run(batch)
    for matrix in (torch.rand(NODES, NODES), torch.rand(NODES, NODES), adjacency(8, kind=kind)):
        held["adj"] = matrix.double()  # dense ones become an input of the graph
        each.run(batch)


def test_one_that_is_a_buffer():
    class Holds(GCN):
        def __init__(self):
            super().__init__()
            self.register_buffer("adj", adjacency())

    def loss(model, batch):
        return loss_of(model, {**batch, "adj": model.adj})

    plain, captured = Holds().double(), Holds().double()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    trainer = shoal.Trainer(captured, torch.optim.SGD(captured.parameters(), lr=0.5), loss)
    for step in range(3):
        optimizer.zero_grad()
        wanted = loss(plain, graph(step))
        wanted.backward()
        optimizer.step()
        assert trainer.step(graph(step)).loss == pytest.approx(wanted.item(), rel=1e-9)
    same(dict(captured.named_parameters()), dict(plain.named_parameters()), 1e-9, "parameter")
    assert captured.state_dict()["adj"].is_sparse


def test_gradients_alone_are_eagers():
    plain, captured = GCN().double(), GCN().double()
    loss_of(plain, graph()).backward()
    shoal.Trainer(captured, loss_fn=loss_of).backward(graph())
    same(
        {name: parameter.grad for name, parameter in captured.named_parameters()},
        {name: parameter.grad for name, parameter in plain.named_parameters()},
        1e-9,
        "gradient",
    )


def refused(loss, model=None, batch=None, **options):
    model = model or nn.Linear(FEATURES, NODES).double()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, **options)
    with pytest.raises(shoal.InvalidInput) as error:
        trainer.step(batch or graph())
    return str(error.value)


@pytest.mark.parametrize(
    ("loss", "called"),
    [
        (lambda model, batch: torch.sparse.sum(batch["adj"] * 2, 1).to_dense() @ model(batch["x"]), "mul"),
        (lambda model, batch: (batch["adj"] @ batch["adj"]) @ model(batch["x"]), "two sparse"),
    ],
)
def test_what_is_not_recorded_is_refused_by_name_and_line(loss, called):
    told = refused(loss)
    assert called in told and "test_sparse.py" in told and "Remedy: mm, mv, addmm, @, t()" in told, told


def test_a_gradient_of_a_sparse_matrix_is_refused():
    class Learns(nn.Module):
        def __init__(self):
            super().__init__()
            self.values = nn.Parameter(torch.rand(EDGES).double())

        def forward(self, batch):
            adj = batch["adj"]
            return torch.sparse_coo_tensor(adj._indices(), self.values, adj.shape) @ batch["x"]

    told = refused(lambda model, batch: model(batch).square().mean(), Learns(), graph(kind="uncoalesced"))
    assert "requires a gradient" in told and "Remedy:" in told, told


def test_another_layout_and_micro_batches_are_refused():
    batch = {**graph(), "adj": adjacency().to_dense().to_sparse_bsr((3, 3))}
    assert "item adj of the batch is SparseBsr; give a dense tensor" in refused(
        loss_of, GCN().double(), batch
    )
    told = refused(loss_of, GCN().double(), accumulate=2)
    assert "item adj is sparse. Remedy: cut the batch yourself, and step_over" in told


def test_on_ranks():
    done = run_ranks(2, "sparse_on_ranks.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all is well") == 2
