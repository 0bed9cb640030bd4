"""The axis legend: one letter per axis, used in every signature and docstring.

| letter | axis |
| --- | --- |
| B | sequences in a batch |
| T | tokens of one sequence in this call |
| K | draft tokens of a round |
| R | rows of a verification window, K + 1; also the snapshot slots that a rollback can name |
| S | slots of a KV cache |
| V | vocabulary; where a model is split over devices, the tokens of one part |
| Va | the vocabulary of all parts together |
| M | members of a list of some tokens; where a model is split over devices, those of one part |
| Ma | the list of all parts together |
| D | model (residual stream) width |
| H | query heads |
| G | KV heads (H is a multiple of G) |
| N | attention head width |
| F | hidden width of an MLP or of one expert |
| E | experts |
| L | layers |
| Hk, Hv | key and value heads of a gated delta net (Hv is a multiple of Hk) |
| Dk, Dv | key and value head widths of a gated delta net |
| C | channels of its causal convolution, 2 Hk Dk + Hv Dv |
| W | taps of its causal convolution |
| P | inputs that the convolution looks at, W - 1 + T |

`*_len`, `n_*` and `length` are counts; positions start at 0.
"""
