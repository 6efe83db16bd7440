"""Logits only where there is a target.

The head runs on the rows (positions) of the last hidden state that have a target. In a masked language model these are
few, so in encoders built like BERT the last block's feed-forward part, too, runs on them alone: after its attention
every row is computed by itself. The loss and all gradients are those of the whole computation but for rounding.
"""

from typing import Any

from torch import Tensor, nn

from hansa.core.batch import Batch

FEW_ROWS = 0.5  # of all positions, at most: choosing rows costs a copy


def logits_at(model: Any, batch: Batch) -> Tensor:
    """The head's output at ``batch.rows`` only, in float32: a matrix of rows and classes.

    In every architecture the head runs after `base_model` (in an encoder–decoder, after the decoder), so that a hook on
    it passes on the wanted rows alone.
    """
    before_head = model.get_decoder() if model.config.is_encoder_decoder else model.base_model
    chosen = False

    def choose(hidden: Tensor) -> Tensor:
        """The rows with a target, of all positions of the batch, as a batch of one."""
        return hidden.reshape(-1, hidden.shape[-1])[batch.rows].unsqueeze(0)

    def in_last_block(_module: nn.Module, args: Any) -> Any:
        """Pre-hook: reduce the inputs of the last block's feed-forward part to the rows with a target."""
        nonlocal chosen
        chosen = True
        return tuple(choose(hidden) for hidden in args)

    def after_base(_module: nn.Module, _args: Any, output: Any) -> Any:
        """Hook: reduce the last hidden state to the rows with a target, unless the last block did so already."""
        if not chosen:
            output.last_hidden_state = choose(output.last_hidden_state)
        return output

    handles = [before_head.register_forward_hook(after_base)]
    if batch.rows is not None and len(batch.rows) <= FEW_ROWS * batch.inputs["input_ids"].numel():
        last = after_last_attention(before_head)
        handles += [last.register_forward_pre_hook(in_last_block)] if last is not None else []
    try:
        # A cache of keys would keep transformers from seeing where packed samples begin.
        cache = {"use_cache": False} if batch.packed else {}
        logits: Tensor = model(**batch.inputs, **cache, return_dict=True).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits.squeeze(0).float()  # the loss of bfloat16 logits would be rounded


def after_last_attention(encoder: Any) -> nn.Module | None:
    """The module of an encoder's last block after which every row is computed by itself, for blocks built like BERT's.

    It is called with the attention's output and the block's input. None for other architectures, and where hooks are
    not called at the right time: blocks that are compiled, or computed again in the backward pass.
    """
    blocks = getattr(getattr(encoder, "encoder", None), "layer", None)
    if not isinstance(blocks, nn.ModuleList) or getattr(encoder, "pooler", None) is not None:
        return None
    last = blocks[-1]
    module = getattr(getattr(last, "attention", None), "output", None)
    likewise = {type(module).__name__.endswith("SelfOutput"), hasattr(last, "intermediate"), hasattr(last, "output")}
    recomputed = getattr(last, "gradient_checkpointing", False) or getattr(last, "_compiled_call_impl", None)
    if likewise != {True} or recomputed or any(block is last for block in blocks[:-1]):
        return None
    return module
