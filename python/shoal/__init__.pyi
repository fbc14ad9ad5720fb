# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch

__version__: str

class Error(RuntimeError):
    """What Shoal refuses or cannot do; its subclasses say what to do about it."""

class InvalidInput(Error, ValueError):
    """The model, the batch or an argument; the message says the remedy."""

class Infeasible(Error):
    """Well-formed, but there is no way to do it here: no memory, no disk space."""

class PeerLost(Error):
    """Another rank stopped."""

class Timeout(Error, TimeoutError):
    """A wait went past its limit."""

class Corrupt(Error):
    """Bytes that were stored or sent are not what they were."""

class Internal(Error):
    """A fault of Shoal's own."""

class Graph:
    """What ATen was asked to do, one node a line when printed."""

    def __len__(self) -> int:
        """How many operators it has."""
    @property
    def ops(self) -> list[str]:
        """Names of the operators, in the order in which they run."""
    @property
    def modules(self) -> list[str]:
        """For each operator the path of the module that it belongs to."""
    @property
    def flops(self) -> float:
        """Of matrix products, attention, convolutions and recurrent layers; an addition counts as one."""
    @property
    def unknown_work(self) -> list[str]:
        """Operators that flops leaves out because no table says how much work they are."""

class StepResult:
    """What one update did; of all ranks together."""

    @property
    def loss(self) -> float:
        """Of the batch, before the update."""
    @property
    def grad_norm(self) -> float:
        """Global L2 norm of the gradients before clipping; 0 without clipping, where nobody computes it."""
    @property
    def learning_rate(self) -> float:
        """Of the optimizer's first parameter group."""
    @property
    def step(self) -> int:
        """Updates made so far, this one included."""
    @property
    def loss_scale(self) -> float:
        """What the loss was multiplied by in float16; 0 in other precisions."""
    @property
    def skipped(self) -> bool:
        """Whether a gradient overflowed in float16: nothing was updated, and the scale is half as much."""
    @property
    def outputs(self) -> Any:
        """What `loss_fn` returned, or without one the model, if it was asked for; caches are None."""

class Evaluation:
    """The loss of a batch in evaluation mode."""

    @property
    def loss(self) -> float:
        """Of all ranks' batches together; float() gives it too."""
    @property
    def outputs(self) -> Any:
        """What `loss_fn` returned, or without one the model, if it was asked for; caches are None."""
    def __float__(self) -> float: ...

class BackwardResult:
    """What one backward() did, besides the gradients."""

    @property
    def loss(self) -> float:
        """Of all ranks' batches together, before any update; float() gives it too."""
    @property
    def outputs(self) -> Any:
        """What `loss_fn` returned, or without one the model, if it was asked for; caches are None."""
    def __float__(self) -> float: ...

class Parallelism:
    """How the ranks of a job train one model together: their degrees multiply to how many there are. One
    degree may be -1: what the others leave; replicate is, by default."""

    def __init__(
        self,
        *,
        replicate: int | None = None,
        shard: int = 1,
        tensor: int = 1,
        pipeline: int = 1,
        zero_stage: int | None = None,
        plan: str | os.PathLike[str] = "",
        replicated_inputs: Sequence[str] | None = None,
        gathers_again: bool | None = None,
        bucket_bytes: int | None = None,
        limit: float = 300.0,
        batch_dims: Mapping[str, int] | None = None,
        mesh: Mapping[str, int] | None = None,
        batch_axes: Sequence[str] | None = None,
        zero_axis: str | None = None,
        reduces_each: bool | None = None,
        precision: str | None = None,
        recompute: str | None = None,
        offload: str | None = None,
        offload_folder: str | os.PathLike[str] | None = None,
        schedule: str | None = None,
        microbatches: int | None = None,
        stages: Sequence[str] | None = None,
        stages_per_rank: int | None = None,
    ) -> None:
        """What is None is as the plan says, and as the plan's defaults where it says nothing.

        `plan`: text, or the path of a file with it. `replicated_inputs`: items of the batch that all ranks
        have alike, by path ("adj"; "input.1" of a tuple; "0" of a batch that is one), each with what is below
        it; a name that the batch has not is InvalidInput at the step. `gathers_again`: with ZeRO-3,
        parameters are gathered for backward again instead of being kept (True). `bucket_bytes`: gradients are
        reduced when so many bytes of them are there (25 MiB). `limit`: seconds of every wait for another
        rank. `mesh`: axes of any names, outer to inner, {"dp": 2, "tp": -1}, in place of degrees;
        `batch_axes` names those that cut the batch, `zero_axis` the one whose ranks keep parts.
        `reduces_each`: the gradients of each micro-batch are reduced, and not their sum alone (with ZeRO-2
        and -3). `batch_dims`: in which dim samples lie, for items of the batch where it is not dim 0: {"x":
        1}, or {"0": 1} of the first item of a tuple, "batch" for a tensor by itself.
        `precision`: "bfloat16": products of matrices, convolutions and attention read and make it, and what
        goes over elements between them; parameters, gradients, optimizer state and all else are float32.
        "bfloat16 lower=aten::exp full=aten::bmm" changes the table; of one rank too. "float16" likewise, its
        loss scaled, by 65536 at first: "float16 scale=1024 grows_after=500"; an update that overflows is
        skipped (StepResult.skipped). "bfloat16 master=kahan" (or none) is for a model in bfloat16: no float32
        copy of its weights; they have a compensation, or are rounded by chance. " reduce=bfloat16" besides:
        gradients cross between ranks in half of the bytes, each sum rounded once.
        `recompute`: what backward makes again instead of forward keeping it: "full", "selective",
        "full h.*.mlp", "auto bytes=96MiB"; of one rank too. `offload`: what lies in a file, "parameters
        optimizer_state gradients activations" or some of them, without another bit in the result;
        "activations least=1MiB" leaves what is smaller in memory (64KiB); of one rank too. The file is in
        `offload_folder` (None: /var/tmp), which has to be on a disk, and has no name. A tensor whose memory
        other libraries share (torch.from_numpy) leaves that memory. `schedule`, of a pipeline: "gpipe",
        "1f1b", "eager_1f1b", "zb_h1" or "zb_h2", or, with two stages a rank, "looped_bfs",
        "interleaved_1f1b", "zbv" or "dualpipev"; or "FILE.csv", a row a rank, in PyTorch's letters.
        `stages_per_rank`: of "interleaved_1f1b" and "looped_bfs"; 0: two.
        `microbatches`: how many a step's batch is cut into; 0: one a stage, or as many as the file has.
        `stages`: where all but the first begin, as paths of modules (["h.6"]); none: where work is
        balanced.

        Raises InvalidInput for text that is no plan, a limit that is not above 0, and a plan with a mesh
        beside degrees; a Trainer, for degrees that do not multiply to the number of ranks, and says which
        would, and for names that its model has not."""
    @property
    def replicate(self) -> int | None:
        """Ranks that keep copies; None: what the others leave."""
    @property
    def shard(self) -> int:
        """Ranks that keep parts of parameters, gradients and optimizer state."""
    @property
    def tensor(self) -> int:
        """Ranks that share the work on a sample, as the plan says."""
    @property
    def pipeline(self) -> int:
        """Ranks that have a stage of the model each."""
    @property
    def zero_stage(self) -> int:
        """What the ranks of shard keep in parts: 0 nothing, 1 the optimizer's state, 2 gradients too, 3
        parameters too; -1, the default: 3 where shard is above 1."""

class PaddingCollator:
    """collate_fn of a DataLoader whose batches have few sizes: pads tensors of samples to multiples.

    DataLoader(data, collate_fn=shoal.PaddingCollator({"input_ids": 0, "attention_mask": 0, "labels": -100}))
    """

    def __init__(
        self,
        values: Mapping[str, float],
        multiple: int = 64,
        *,
        dim: int = 0,
        collate: Callable[[list[Any]], Any] = ...,
    ) -> None:
        """`values`: which items of a sample are padded, and with what; a loss has to leave out what is added,
        as cross_entropy does with -100. They become as long in `dim`, counted without the batch's, as the
        longest of the batch, rounded up to the next `multiple`. `collate` makes a batch of the samples then:
        torch's default_collate. Raises InvalidInput for a multiple below 1, and for no item."""
    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        """The batch. Raises InvalidInput for a sample that lacks an item, or an item without that dim."""

class RowPart:
    """A stretch of a table's rows with an optimizer of its own, a Table's keywords for one. `width`:
    values, 1 to 65,536. `lowest`, `highest`: bounds of its values, which an update does not leave.
    `earned_at`: the score at which it is made, of a scored table; until then it reads as zeros. 0: made
    with its row."""
    def __init__(
        self,
        width: int,
        *,
        optimizer: str | None = None,
        lr: float | None = None,
        beta1: float | None = None,
        beta2: float | None = None,
        eps: float | None = None,
        start: float | None = None,
        l1: float | None = None,
        l2: float | None = None,
        initial: str | None = None,
        scale: float | None = None,
        lowest: float | None = None,
        highest: float | None = None,
        earned_at: float = 0.0,
    ) -> None: ...

class Table:
    """Parameters of a model whose rows are in a table, by a key of 63 bits: of nn.Embedding, nn.EmbeddingBag,
    or what looks rows up by F.embedding. Others are read whole in each step, a row for each index of their
    first dim."""
    def __init__(
        self,
        parameters: str,
        *,
        optimizer: Literal[
            "sgd", "momentum", "adagrad", "row_adagrad", "adam", "row_adam", "rms_prop", "ftrl"
        ]
        | None = None,
        lr: float | None = None,
        beta1: float | None = None,
        beta2: float | None = None,
        eps: float | None = None,
        start: float | None = None,
        l1: float | None = None,
        l2: float | None = None,
        initial: Literal["constant", "uniform", "normal"] | None = None,
        scale: float | None = None,
        seed: int = 0,
        dtype: torch.dtype | str | None = None,
        parts: Sequence[RowPart] = (),
        admission: Literal["always", "count", "probability", "score"] = "always",
        threshold: float = 0.0,
        candidates: int = 2**20,
        scored: bool = False,
        show_weight: float = 0.1,
        click_weight: float = 1.0,
        decay: float = 1.0,
        min_score: float = 0.0,
        max_unseen_days: int = 0,
        max_rows: int = 0,
        max_bytes: int = 0,
        shards: int = 1024,
        clicks: str = "",
        slot_days: Mapping[int, int] = {},
        slot_bits: int = 10,
    ) -> None:
        """`parameters`: their names, with * for any characters but dots.

        `optimizer`: what updates a row, by itself: state is there for rows that were updated. Its numbers:
        lr 0.01, beta1 0.9 (momentum, adam), beta2 0.999 (adam, rms_prop), eps 1e-10 (of ftrl: its beta),
        start 0 (what sums of squares begin with), l1 (ftrl), l2 (added to the gradient of the batch's
        rows). None: the Trainer's optimizer, where it leaves rows alone that a batch has not: SGD and
        Adagrad, without momentum and weight decay; learning rates are followed.

        `initial`: what rows begin with, each by itself, of (seed, table, key): "constant" `scale`,
        "uniform" in ±scale, "normal" of that deviation; scale 0.01. None: the values that the parameter
        has, or how deferred_init's would be made.

        `dtype`: of rows where they are; the parameter's, or bfloat16 of a float32 one. `parts`: a row is
        made of these, from its begin; what one does not say is as the table says.

        `admission`: when an id gets a row: "count": at the `threshold`-th step that has it (`candidates`
        ids are remembered at 4 bytes each), "probability": at each with that chance, "score": at that
        score. `scored`: rows count shows and clicks; what is below `min_score`, unseen for more days, or
        above a bound of rows or bytes goes when a day ends; 0: no bound. `decay`: of scores, a day.
        `slot_days`: {slot: days} that rows of a slot may be unseen where it is not `max_unseen_days`, 0: for
        ever; an id's slot is the highest `slot_bits` of its 63.
        `clicks`: of scored rows, the input of a step that has of each sample how often it was clicked, of
        shape (samples,) where ids are (samples, ...), by its name, as "targets"; "": nothing is clicked.

        `shards`: a power of two, at least the number of parts that servers share.

        Raises InvalidInput naming the argument; the Trainer raises it for what does not fit the parameter."""

class Tables:
    """Several tables, and how steps reach them."""
    def __init__(
        self,
        tables: Table | Sequence[Table],
        *,
        mode: Literal["sync", "async", "half_async", "geo"] = "sync",
        staleness: int = 4,
        geo_steps: int = 20,
        cache_rows: int = 65536,
        before: Literal["refuse", "clear", "keep"] = "refuse",
        memory: str = "",
        cold_folder: str = "",
        wire_dtype: torch.dtype | str | None = None,
        save_deltas: int = 0,
    ) -> None:
        """`mode`: "sync": a step is one update of all ranks, and rows are those of one device. "async":
        each rank's is applied when it comes. "half_async": a row lacks at most `staleness` steps of any
        rank, and up to `cache_rows` of a table are kept by a rank until then. "geo": a rank trains rows by
        itself, and sends what became of them every `geo_steps` steps. `before`: what becomes of rows that
        servers have from a trainer before. `memory`: of each table in this process, as "8GiB"; other rows
        lie in `cold_folder`, which is this process's alone and is emptied. `wire_dtype`: as what rows and
        gradients of float32 tables go to servers and back, float32 or bfloat16, to the nearest.
        `save_deltas`: checkpoints between two with all rows, that have only those that changed. Raises
        InvalidInput for a number out of its bounds, and naming `memory`, `cold_folder` or `wire_dtype`."""

class Trainer:
    """Trains a module through its captured graph. One thread at a time.

    The module always holds the current parameters and buffers, and optimizer.state the current state: read,
    save or change them between steps. A batch reaches loss_fn and the model as it was given: order of keys,
    classes of containers, one tensor given twice as one.

    With `parallelism` every rank makes a trainer of the same model and calls it alike, with its part of each
    batch; losses, norms, gradients and state are those of all ranks together. Parameters that ranks keep in
    parts (ZeRO-3, tensor parallel) have no memory in the module, but for after materialize(); optimizer.state
    is empty then, and optimizer.state_dict() gathers. What changes parameters or buffers between calls, a
    forward of one's own in training mode among it, is done on all ranks alike.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        *,
        clip_norm: float = 0.0,
        seed: int | None = None,
        graph_bytes: int = 256 * 2**20,
        keeps_gradients: bool = False,
        spot_checks: float = 0.005,
        parallelism: Parallelism | None = None,
        ignores: Sequence[str] = (),
        on_refusal: Literal["error", "eager"] = "error",
        accumulate: int = 1,
        state_dtype: Literal["float32", "bfloat16", "uint8"] = "float32",
        tables: Table | Sequence[Table] | Tables | None = None,
    ) -> None:
        """`loss_fn(model, batch)` returns the loss, or something with a loss in it. Without it the model is
        called with the batch (a mapping as keywords, a tuple or list as arguments), and its output has the
        loss. Without an optimizer there is backward() and evaluate(), and no step(). `keeps_gradients`: after
        a step each parameter's grad is its gradient in that step, before clipping, whole on every rank, and
        None where it got none; otherwise a step leaves grad alone.

        `spot_checks`: at the 2nd, 4th and 8th step of each captured graph, and then whenever that takes at
        most this share of the time since, the model is called once more and compared with its graph; where
        it would be another one now, the step is InvalidInput that names module, line and remedy, and changes
        nothing. 0: not after the 8th step; negative: never.

        `graph_bytes`: what captured graphs, one a shape of the batch, may take together; those that were not
        used for longest go. Graphs that differ in sizes alone count as one for spot checks.

        `ignores`: paths, with * and ?, of what the model changes while it runs and no result depends on, such
        as "*.calls"; "random" and "numpy.random" are the generators.

        `seed`: of what the model draws; without one it is what torch's generator would draw next, and which
        stays as it is: torch.manual_seed decides, and two trainers draw different numbers, but for those of
        two equal copies of a model; of several ranks rank 0's.

        `on_refusal`: "eager": a model that cannot be captured runs by itself from then on, forward and
        backward by PyTorch; the update, clipping and reduction of gradients are the trainer's. A warning says
        why and what it costs. Not where ranks keep parameters in parts.

        `accumulate`: step() cuts its batch along dim 0 into so many micro-batches for step_over().

        `state_dtype`: what averages and momentum are kept in; "float32" is the parameter's type. "bfloat16"
        takes half the memory: an update computes as without it, and rounds what it keeps. "uint8" takes a
        quarter: codes, and an "exp_avg_absmax" for every 256 elements of "exp_avg"; tensors of fewer than
        4096 elements stay as they are. Neither of Adafactor and Muon.

        `clip_norm`: the largest global L2 norm of the gradients that an update is made with; 0: no clipping.

        `tables`: parameters whose rows are in tables: on the servers of the job that `shoal run --servers`
        started, else, of one rank, in this process. Each has no memory from then on; rows(), set_rows(),
        save(), load() and, until the next step, materialize() reach its rows.

        Raises InvalidInput naming what it is and the remedy: for an optimizer or an option of one that Shoal
        has not, parameters that are not the model's, are in the optimizer twice, share memory, are sparse or
        float8; options out of their bounds; degrees that do not fit. Infeasible where ranks are to share a
        model that is not in main memory, Timeout where other ranks do not come within `parallelism`'s
        limit."""
    def step(self, batch: Any, *, outputs: bool = False) -> StepResult:
        """One update. A loss that is not finite is an error; parameters, buffers and optimizer state are then
        as before the step. Options, groups and state of the optimizer are what it has now; its post hooks run
        after the update, and a pre hook, or a step() that is not PyTorch's own, is an error: see backward.

        `outputs`: whether the result has what `loss_fn` returned, or without one the model.

        All calls with a batch capture it where its shape is new, and raise InvalidInput naming module path,
        source line and remedy for what cannot be captured; for a batch with anything but tensors, numbers,
        strings and None in containers; where ranks call different things, or the first dims of their parts
        do not go together. PeerLost where another rank has gone, Timeout where one does not come."""
    def step_over(self, microbatches: Sequence[Any], *, outputs: bool = False) -> StepResult:
        """One update by several batches, one after the other in the memory of one, with the loss and
        gradients that they have together: a mean over targets or elements is that over all of them; another
        loss counts alike for each. Batch statistics are those of each micro-batch. No outputs are kept.
        Raises InvalidInput for no micro-batch, with `outputs`, and as step() does."""
    def backward(self, batch: Any, *, outputs: bool = False) -> BackwardResult:
        """Forward and backward without an update, for an optimizer of your own: each gradient is added to its
        parameter's grad, in place where there is one, as loss.backward() does; buffers change as in forward.
        The loss is returned as it is, also one that is not finite, and nothing is clipped. Random ops draw
        from the number of calls so far, and other numbers than any step. On several ranks the gradients are
        those of the whole batch, whole on each rank, and parameters that are kept in parts are in the module
        until the next call, as after materialize(). Raises InvalidInput for parameters with hooks that are to
        run after a gradient has been accumulated, and as step() does."""
    def evaluate(self, batch: Any, *, outputs: bool = False) -> Evaluation:
        """The loss in evaluation mode, without gradients; nothing changes. What the model draws even so, for
        Monte Carlo dropout, is drawn anew at each call; the draws of training stay as they are. Called by all
        ranks at once; loss and outputs are then those of all ranks' samples, sums and means too."""
    def graph(self, batch: Any) -> Graph:
        """The whole captured step for a batch of this shape, update included; of several ranks, all of them
        together. Nothing is run but the capture. Raises as step() does."""
    def gradients(self) -> dict[str, torch.Tensor]:
        """Gradients of the last step, before clipping, by parameter name, of the parameters' shapes and
        dtypes; parameters without one are left out. Whole on each of several ranks, which all call it."""
    def state_dict(self) -> dict[str, Any]:
        """Model, optimizer, number of updates and seed; load_state_dict() goes on from there. A trainer that
        was given a seed keeps its own. Of several ranks called by all at once, and copied."""
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what state_dict() returned. Called by all ranks at once. Raises InvalidInput for a
        state that lacks a part, or is of a trainer with an optimizer where this has none; and what PyTorch's
        load_state_dict() of model and optimizer raise for what does not fit them."""
    def save(self, folder: str | os.PathLike[str], note: Any = "", *, keep: int = 10) -> None:
        """A checkpoint in `folder`, as step_00000100 of as many updates and backward()s: parameters, buffers,
        the optimizer's state and options, counts, seed, and a note of yours that JSON can hold, with tuples
        and dictionaries of any keys too (epoch and batches done, `schedule.state_dict()`). Takes the time of
        one copy: a thread writes it while training goes on, whole or not at all. A tensor of one element in
        the note comes back as a number, another is InvalidInput. The newest `keep` stay, 0: all. Called by
        all ranks at once with the same folder; rank 0 writes. Raises Infeasible where the save before could
        not be written: what was there before is; InvalidInput for what it cannot hold.
        """
    def wait_for_saves(self) -> None:
        """Until all that was saved is on the disk; raises Infeasible with what is not. The end of the trainer
        waits too, and says nothing."""
    def load(self, folder: str | os.PathLike[str], *, step: int | None = None) -> Any:
        """Goes on, bit for bit, from the newest checkpoint of the folder whose every byte is as written, on
        whatever number of ranks and layout it was saved; a damaged newer one is warned of. `step`: from that
        of as many updates and backward()s instead, where two trainers save in turns, say, and one has saved
        once more than the other. Returns its note, "" where it was saved without one, or None where there is
        no checkpoint: compare with `is None`. A trainer that was given a seed keeps its own. Called by all
        ranks at once. Raises Corrupt where all are damaged, or that one is, InvalidInput listing what does
        not fit the model, and the steps that there are where that one is not: nothing has changed then."""
    def materialize(self) -> None:
        """Puts parameters that ranks keep in parts back into the module, whole, until the next step. Called
        by all ranks at once."""
    def rows(self, parameter: str, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of a parameter that is a table, as they are now: [*ids.shape, width], in the parameter's
        dtype; without `ids` all of them, [num_embeddings, width]. Of other ranks, what they have sent.
        Raises InvalidInput for a parameter that is none, an id that there cannot be, and for all rows of a
        table of more than 2 GiB of them."""
    def set_rows(self, parameter: str, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Rows of a parameter that is a table become `values`, [*ids.shape, width]; their optimizer's state
        begins anew. Called by all ranks at once; those of rank 0 count. Raises InvalidInput as rows(), and
        for values of another shape."""
    def end_day(self, day: int) -> dict[str, dict[str, int]]:
        """A day of rows in tables ends, and the next one has this number: scores decay, and rows expire as
        their Table says, with their optimizer's state; an id that comes again begins anew. Of each table
        with scores: `rows` that there were, and those that went, `low_score`, `unseen`, `over_bound`; on
        rank 0, empty on others. Called by all ranks at once, between two steps."""
    @property
    def stalest_row(self) -> int | None:
        """Tables in mode "half_async": how many steps that row lacked, when it was read, that lacked most.
        None in other modes."""
    def plan(self) -> str:
        """The plan that the ranks follow, with what was found of it from the first step on, as text that
        Parallelism(plan=…) takes. Empty on one device."""
    def report(self) -> str:
        """What ranks do in a step, as `shoal plan` prints it: layouts, messages and their bytes, how much
        runs split. Raises InvalidInput before the first step, and on one device."""
    def forget_graphs(self) -> None:
        """Drops all captured graphs: for a model whose code or settings were changed between steps."""
    @property
    def model(self) -> torch.nn.Module:
        """The module that it was given; of a wrapper of PyTorch's, what is inside."""
    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """None if it was given none."""

def capture(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """The graph of fn(*args, **kwargs): forward, and backward if it returns a loss that requires a gradient.
    Tensors among the arguments are its inputs; parameters are those of modules that fn is, closes over or is
    given. Raises InvalidInput where fn returns no tensor, and naming source line and remedy for what cannot
    be captured."""

def deferred_init(make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What make(*args, **kwargs) returns, with tensors that have no memory until a Trainer, or materialize,
    makes each: eager's values. Tensors of at most 1024 elements are made at once. Raises InvalidInput for
    what cannot be called."""

def materialize(model: Any) -> Any:
    """Gives the tensors of a module, or one tensor, that deferred_init made their memory and values, and
    returns it. Nothing happens to a tensor that has memory. Raises InvalidInput for what is neither."""

def replicate(devices: int = 0) -> AbstractContextManager[None]:
    """A scope, `with shoal.replicate(1):`, around code that builds or calls modules: one stage of a
    pipeline.

    Ranks of a stage have to be a multiple of `devices`; 0: as many as there are. Stages stand in the order
    in which forward comes to them; a scope that is entered again, in a loop, is another stage. On one
    device, and for eager PyTorch, it does nothing. A deep copy of a model does not know what was built
    inside.

    InvalidInput inside another scope, and for fewer than 0 devices; from the first step where the pipeline
    has another number of stages. Source: EPL (Jia et al., Whale, USENIX ATC 2022, section 3.1)."""

def split(devices: int = 0) -> AbstractContextManager[None]:
    """A scope, `with shoal.split(2):`, around code that builds or calls modules: their matrices are cut
    over so many ranks, those of the axis whose placements are found (tensor); 0: as many as it has. How is
    left to the planner. What is outside is whole on each rank, and the batch is split among them unless
    another axis cuts it.

    InvalidInput inside another `split`, and for fewer than 0 devices; from the first step where there is no
    such axis, or a matrix inside cannot be cut. Source: as replicate's."""

def rank() -> int:
    """This process among those of the job, from 0; 0 outside of one. Raises InvalidInput where the
    environment's variables contradict each other."""

def world_size() -> int:
    """How many ranks the job has; 1 outside of one. Raises as rank() does."""

def samples_of(size: int, parallelism: Parallelism | None = None) -> slice:
    """The slice of a batch of this size, all ranks together, that this rank is to be given. Without a
    parallelism the ranks share it evenly, the first ones with one sample more. Raises InvalidInput for
    degrees that do not multiply to the number of ranks."""
