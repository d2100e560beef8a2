"""Canonical operator kinds: one table of the names that torch, ONNX and PipeDream use for the same operator.

FLOPs follow `torch.utils.flop_counter`: a multiply-add of a contraction (matrix product, convolution,
attention, recurrent cell) counts 2; every other operator counts by the bytes it moves, which limit its speed.
"""

from __future__ import annotations

KINDS: tuple[str, ...] = (
    "convolution",
    "depthwise_convolution",
    "transposed_convolution",
    "linear",
    "matmul",
    "attention",
    "recurrent",
    "embedding",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "softmax",
    "activation",
    "dropout",
    "elementwise",
    "reduction",
    "pooling",
    "concat",
    "copy",
    "cast",
    "gather",
    "resize",
    "sort",
    "loss",
    "fill",
    "other",
)
"""Every canonical kind. A kind that is not among them is an operator's own name; models treat it as `other`."""

CONTRACTIONS = frozenset(
    {
        "convolution",
        "depthwise_convolution",
        "transposed_convolution",
        "linear",
        "matmul",
        "attention",
        "recurrent",
    }
)
"""Kinds that have FLOPs and may run on tensor cores."""
WEIGHTED = CONTRACTIONS - {"matmul", "attention"}
"""Contractions with weights, of their own or shared with another operator."""

_INDEX = {kind: i for i, kind in enumerate(KINDS)}


def kind_index(kind: str) -> int:
    """Column of a kind; unknown kinds share that of `other`."""
    return _INDEX.get(kind, _INDEX["other"])


DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex32": 4,
}
"""Bytes per element of every type that a graph may name."""

DTYPES: tuple[str, ...] = tuple(DTYPE_BYTES)
_DTYPE_INDEX = {name: i for i, name in enumerate(DTYPES)}


def dtype_index(name: str) -> int:
    """Position of a type in `DTYPES`; -1 for others, and for the empty name of an unknown type."""
    return _DTYPE_INDEX.get(name, -1)


def _table(**names: str) -> dict[str, str]:
    return {name: kind for kind, text in names.items() for name in text.split()}


ATEN: dict[str, str] = _table(
    convolution="convolution _convolution conv2d conv1d conv3d cudnn_convolution mkldnn_convolution",
    transposed_convolution="conv_transpose1d conv_transpose2d conv_transpose3d",
    linear="linear",
    matmul="mm addmm bmm baddbmm addbmm mv addmv dot matmul einsum _grouped_mm _scaled_mm bilinear _trilinear vdot "
    "_euclidean_dist tensordot linalg_multi_dot linalg_matrix_power chain_matmul linalg_solve_triangular",
    attention="attention scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_flash_attention_for_cpu",
    recurrent="recurrent lstm gru rnn_tanh rnn_relu lstm_cell gru_cell _thnn_fused_lstm_cell _cudnn_rnn",
    embedding="embedding _embedding_bag embedding_bag _embedding_bag_forward_only",
    batch_norm="native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm "
    "batch_norm _native_batch_norm_legit_no_training instance_norm",
    layer_norm="native_layer_norm layer_norm _fused_rms_norm rms_norm",
    group_norm="native_group_norm group_norm",
    softmax="_softmax _log_softmax softmax log_softmax logsumexp _safe_softmax",
    activation="relu relu_ relu6 gelu silu silu_ sigmoid sigmoid_ tanh tanh_ leaky_relu leaky_relu_ elu elu_ celu selu "
    "hardtanh hardtanh_ hardswish hardswish_ hardsigmoid hardsigmoid_ softplus mish prelu _prelu_kernel threshold "
    "threshold_ log_sigmoid_forward glu softshrink hardshrink rrelu_with_noise "
    "rrelu log_sigmoid",
    dropout="native_dropout dropout dropout_ bernoulli bernoulli_ alpha_dropout feature_dropout feature_alpha_dropout",
    elementwise="add add_ sub sub_ rsub mul mul_ div div_ pow pow_ sqrt rsqrt exp log log1p expm1 abs neg sign sgn sin cos "
    "maximum minimum clamp clamp_ clamp_min clamp_max where masked_fill masked_fill_ eq ne lt le gt ge logical_and "
    "logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not lerp lerp_ addcmul addcmul_ addcdiv "
    "addcdiv_ reciprocal square erf floor ceil round remainder fmod tril triu floor_divide tan atan atan2 "
    "nan_to_num isnan isinf polar complex xlogy _fft_r2c _fft_c2r _fft_c2c fft_fft fft_ifft fft_rfft fft_irfft "
    "fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn "
    "logaddexp logaddexp2 hypot fmax fmin copysign heaviside erfc erfinv exp2 sinc trunc frac asin acos sinh cosh asinh "
    "acosh atanh logit lgamma digamma polygamma angle rad2deg deg2rad linalg_cross special_i0e special_i1e special_entr isin "
    "addr _weight_norm_interface __and__ __or__ __xor__ __lshift__ __rshift__ bitwise_xor bitwise_left_shift "
    "bitwise_right_shift isclose i0 special_i0 special_i1 special_log_ndtr special_xlog1py special_zeta outer kron diff",
    reduction="sum mean var std var_mean max min amax amin argmax argmin prod any all norm linalg_vector_norm cumsum "
    "cumprod count_nonzero trace cummax cummin logcumsumexp std_mean aminmax median nanmedian nansum dist renorm "
    "_is_all_true _is_any_true multinomial histc segment_reduce pairwise_distance cosine_similarity trapezoid",
    pooling="max_pool2d_with_indices max_pool3d_with_indices max_pool1d max_pool2d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d "
    "adaptive_max_pool1d adaptive_avg_pool3d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d",
    concat="cat stack concat hstack vstack",
    copy="clone copy copy_ contiguous repeat constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d "
    "_reshape_copy _unsafe_view roll flip im2col col2im slice_scatter select_scatter pixel_shuffle "
    "channel_shuffle unfold tile repeat_interleave reflection_pad3d replication_pad3d _pack_padded_sequence "
    "pixel_unshuffle rot90 diag_embed diagonal_scatter block_diag pad fft_fftshift fft_ifftshift",
    cast="_to_copy to type_as",
    gather="gather scatter scatter_ scatter_add scatter_add_ index index_select index_put index_put_ _index_put_impl_ "
    "take take_along_dim masked_select index_add index_add_ nonzero one_hot scatter_reduce _unsafe_index masked_scatter "
    "index_fill index_copy index_reduce put max_unpool2d max_unpool3d embedding_renorm bucketize searchsorted "
    "_convert_indices_from_coo_to_csr",
    resize="upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_trilinear3d "
    "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d grid_sampler_2d upsample_linear1d affine_grid_generator "
    "grid_sampler_3d grid_sampler",
    sort="sort topk argsort unique kthvalue mode quantile nanquantile",
    loss="nll_loss_forward nll_loss2d_forward binary_cross_entropy binary_cross_entropy_with_logits mse_loss "
    "smooth_l1_loss l1_loss huber_loss _ctc_loss ctc_loss kl_div cross_entropy_loss "
    "multi_margin_loss multilabel_margin_loss_forward soft_margin_loss nll_loss_nd poisson_nll_loss multilabel_margin_loss "
    "cosine_embedding_loss margin_ranking_loss hinge_embedding_loss triplet_margin_loss",
    fill="zeros zeros_like ones ones_like full full_like empty empty_like empty_strided arange fill fill_ zero_ "
    "new_zeros new_ones new_full new_empty new_empty_strided rand randn rand_like randn_like randint randint_like "
    "normal normal_ uniform uniform_ eye linspace scalar_tensor lift_fresh tril_indices triu_indices randperm exponential_ _local_scalar_dense "
    "poisson hann_window hamming_window lift_fresh_copy _efficientzerotensor",
)
"""`aten` overload packet, without its namespace, to kind."""

ONNX: dict[str, str] = _table(
    convolution="Conv ConvInteger",
    transposed_convolution="ConvTranspose",
    matmul="Gemm MatMul Einsum MatMulInteger",
    attention="Attention MultiHeadAttention",
    recurrent="LSTM GRU RNN",
    embedding="EmbeddingBag",
    batch_norm="BatchNormalization InstanceNormalization",
    layer_norm="LayerNormalization RMSNormalization SimplifiedLayerNormalization",
    group_norm="GroupNormalization",
    softmax="Softmax LogSoftmax ReduceLogSumExp",
    activation="Relu Gelu Sigmoid Tanh LeakyRelu Elu Selu Celu HardSigmoid HardSwish Softplus Softsign Mish PRelu "
    "ThresholdedRelu Swish",
    dropout="Dropout Bernoulli",
    elementwise="Add Sub Mul Div Pow Sqrt Exp Log Abs Neg Sign Sin Cos Max Min Clip Where Equal Less LessOrEqual Greater "
    "GreaterOrEqual And Or Not Xor Reciprocal Erf Floor Ceil Round Mod Sum Mean Trilu IsNaN IsInf Tan Atan BitwiseAnd "
    "BitwiseOr BitwiseNot BitShift",
    reduction="ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
    "ArgMax ArgMin CumSum LpNormalization MeanVarianceNormalization",
    pooling="MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool GlobalLpPool",
    concat="Concat ConcatFromSequence",
    copy="SplitToSequence SequenceAt SequenceConstruct Pad Expand Tile Slice Split Transpose DepthToSpace SpaceToDepth ReverseSequence CenterCropPad Col2Im LRN",
    cast="Cast CastLike QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
    gather="Gather GatherElements GatherND Scatter ScatterElements ScatterND OneHot NonZero Compress TensorScatter",
    resize="Resize Upsample GridSample AffineGrid RoiAlign",
    sort="TopK Unique NonMaxSuppression",
    loss="SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss",
    fill="Constant ConstantOfShape Range EyeLike RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
)
"""ONNX operator type to kind."""

ONNX_VIEWS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Shape", "Size"})
"""ONNX operators that move no tensor data."""

MODULES: dict[str, str] = _table(
    convolution="Conv1d Conv2d Conv3d",
    transposed_convolution="ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    linear="Linear Classifier",
    attention="RecurrentAttention BahdanauAttention MultiheadAttention",
    recurrent="LSTM GRU RNN EmuBidirLSTM LSTMCell",
    embedding="Embedding EmbeddingBag",
    batch_norm="BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm2d",
    layer_norm="LayerNorm",
    group_norm="GroupNorm",
    softmax="Softmax LogSoftmax",
    activation="ReLU ReLU6 GELU SiLU Sigmoid Tanh LeakyReLU ELU Hardswish Hardsigmoid Threshold",
    dropout="Dropout Dropout2d",
    elementwise="Add Mul Sub Div hidden",
    pooling="MaxPool1d MaxPool2d MaxPool3d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d",
    concat="Concat Stack",
    copy="ZeroPad2d ReflectionPad2d",
    reduction="Mean Sum",
    loss="CrossEntropyLoss LabelSmoothing",
)
"""Name of a module class (PipeDream's graphs) to kind."""
