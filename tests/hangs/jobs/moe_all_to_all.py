"""Experts are spread over the ranks. Rank 2 has no tokens for this layer and returns before the exchange."""

import torch
import torch.distributed as dist
from mark import ready


def route(tokens: torch.Tensor) -> list[int]:
    share, world = len(tokens) // dist.get_world_size(), dist.get_world_size()
    return [share] * (world - 1) + [len(tokens) - share * (world - 1)]


def dispatch(tokens: torch.Tensor) -> torch.Tensor:
    if tokens.numel() == 0:
        return tokens
    sending = torch.tensor(route(tokens))
    receiving = torch.empty_like(sending)
    dist.all_to_all_single(receiving, sending)
    arrived = torch.empty(int(receiving.sum()))
    dist.all_to_all_single(arrived, tokens, receiving.tolist(), sending.tolist())
    return arrived


def balance_loss(tokens: torch.Tensor) -> torch.Tensor:
    load = torch.tensor([float(len(tokens))])
    dist.all_reduce(load)
    return load


def main() -> None:
    dist.init_process_group("gloo")
    for step in range(10):
        tokens = torch.ones(9)
        if step == 3:
            ready()
            if dist.get_rank() == 2:
                tokens = tokens[:0]
        balance_loss(dispatch(tokens))


if __name__ == "__main__":
    main()
