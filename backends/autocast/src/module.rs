//! Operations of layers.

use crate::mode::{self, Mode, Rule};
use crate::tensor::{cast, cast_primitive};
use crate::{Autocast, CastTensor};
use burn_backend::Backend;
use burn_backend::ops::attention::attention_fallback;
use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConv2dBackward,
    DeformConvOptions, InterpolateOptions, MaxPool1dBackward, MaxPool1dWithIndices,
    MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps, UnfoldOptions,
};
use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};

impl<B: Backend> ModuleOps<Self> for Autocast<B> {
    forward! {
        AsIs =>
        embedding(weights: F, indices: I) -> F;
        unfold4d(x: F, kernel_size: ([usize; 2]), options: UnfoldOptions) -> F;
        max_pool1d(
            x: F,
            kernel_size: usize,
            stride: usize,
            padding: usize,
            dilation: usize,
            ceil_mode: bool,
        ) -> F;
        max_pool2d(
            x: F,
            kernel_size: ([usize; 2]),
            stride: ([usize; 2]),
            padding: ([usize; 2]),
            dilation: ([usize; 2]),
            ceil_mode: bool,
        ) -> F;
    }

    forward! {
        Narrow =>
        linear(x: F, weight: F, bias: OptF) -> F;
        linear_x_backward(weight: F, output_grad: F) -> F;
        linear_weight_backward(x: F, output_grad: F) -> F;
        conv1d(x: F, weight: F, bias: OptF, options: (ConvOptions<1>)) -> F;
        conv1d_x_backward(x: F, weight: F, output_grad: F, options: (ConvOptions<1>)) -> F;
        conv1d_weight_backward(x: F, weight: F, output_grad: F, options: (ConvOptions<1>)) -> F;
        conv2d(x: F, weight: F, bias: OptF, options: (ConvOptions<2>)) -> F;
        conv2d_x_backward(x: F, weight: F, output_grad: F, options: (ConvOptions<2>)) -> F;
        conv2d_weight_backward(x: F, weight: F, output_grad: F, options: (ConvOptions<2>)) -> F;
        conv3d(x: F, weight: F, bias: OptF, options: (ConvOptions<3>)) -> F;
        conv3d_x_backward(x: F, weight: F, output_grad: F, options: (ConvOptions<3>)) -> F;
        conv3d_weight_backward(x: F, weight: F, output_grad: F, options: (ConvOptions<3>)) -> F;
        conv_transpose1d(x: F, weight: F, bias: OptF, options: (ConvTransposeOptions<1>)) -> F;
        conv_transpose1d_x_backward(
            weight: F,
            output_grad: F,
            options: (ConvTransposeOptions<1>),
        ) -> F;
        conv_transpose1d_weight_backward(
            x: F,
            weight: F,
            output_grad: F,
            options: (ConvTransposeOptions<1>),
        ) -> F;
        conv_transpose2d(x: F, weight: F, bias: OptF, options: (ConvTransposeOptions<2>)) -> F;
        conv_transpose2d_x_backward(
            weight: F,
            output_grad: F,
            options: (ConvTransposeOptions<2>),
        ) -> F;
        conv_transpose2d_weight_backward(
            x: F,
            weight: F,
            output_grad: F,
            options: (ConvTransposeOptions<2>),
        ) -> F;
        conv_transpose3d(x: F, weight: F, bias: OptF, options: (ConvTransposeOptions<3>)) -> F;
        conv_transpose3d_x_backward(
            weight: F,
            output_grad: F,
            options: (ConvTransposeOptions<3>),
        ) -> F;
        conv_transpose3d_weight_backward(
            x: F,
            weight: F,
            output_grad: F,
            options: (ConvTransposeOptions<3>),
        ) -> F;
        deform_conv2d(
            x: F,
            offset: F,
            weight: F,
            mask: OptF,
            bias: OptF,
            options: (DeformConvOptions<2>),
        ) -> F;
    }

    forward! {
        Wide =>
        linear_bias_backward(output_grad: F) -> F;
        conv1d_bias_backward(x: F, bias: F, output_grad: F) -> F;
        conv2d_bias_backward(x: F, bias: F, output_grad: F) -> F;
        conv3d_bias_backward(x: F, bias: F, output_grad: F) -> F;
        conv_transpose1d_bias_backward(x: F, bias: F, output_grad: F) -> F;
        conv_transpose2d_bias_backward(x: F, bias: F, output_grad: F) -> F;
        conv_transpose3d_bias_backward(x: F, bias: F, output_grad: F) -> F;
        layer_norm(tensor: F, gamma: F, beta: OptF, epsilon: f64) -> F;
        ctc_loss(log_probs: F, targets: I, input_lengths: I, target_lengths: I, blank: usize) -> F;
        ctc_loss_backward(
            log_probs: F,
            targets: I,
            input_lengths: I,
            target_lengths: I,
            grad_loss: F,
            blank: usize,
        ) -> F;
        irfft(spectrum_re: F, spectrum_im: F, dim: usize, n: (Option<usize>)) -> F;
    }

    forward! {
        Through =>
        avg_pool1d(
            x: F,
            kernel_size: usize,
            stride: usize,
            padding: usize,
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> F;
        avg_pool2d(
            x: F,
            kernel_size: ([usize; 2]),
            stride: ([usize; 2]),
            padding: ([usize; 2]),
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> F;
        adaptive_avg_pool1d(x: F, output_size: usize) -> F;
        adaptive_avg_pool2d(x: F, output_size: ([usize; 2])) -> F;
        interpolate(x: F, output_size: ([usize; 2]), options: InterpolateOptions) -> F;
    }

    forward! {
        Join =>
        avg_pool1d_backward(
            x: F,
            grad: F,
            kernel_size: usize,
            stride: usize,
            padding: usize,
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> F;
        avg_pool2d_backward(
            x: F,
            grad: F,
            kernel_size: ([usize; 2]),
            stride: ([usize; 2]),
            padding: ([usize; 2]),
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> F;
        adaptive_avg_pool1d_backward(x: F, grad: F) -> F;
        adaptive_avg_pool2d_backward(x: F, grad: F) -> F;
        interpolate_backward(
            x: F,
            grad: F,
            output_size: ([usize; 2]),
            options: InterpolateOptions,
        ) -> F;
    }

    forward! {
        Widest =>
        embedding_backward(weights: F, output_grad: F, indices: I) -> F;
    }
    // The others give or take more than one tensor.

    fn attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        mask: Option<BoolTensor<Self>>,
        attn_bias: Option<FloatTensor<Self>>,
        options: AttentionModuleOptions,
    ) -> FloatTensor<Self> {
        // Step by step, so that the softmax is in 32 bits, as it is in training.
        if mode::current() != Mode::AsGiven {
            return attention_fallback::<Self>(query, key, value, mask, attn_bias, options);
        }
        let bias = attn_bias.as_ref().map(CastTensor::seen);
        let seen = [
            Some(query.seen()),
            Some(key.seen()),
            Some(value.seen()),
            bias,
        ];
        let to = mode::plan(Rule::Join, "attention", &seen).operands;
        let bias = attn_bias.map(|bias| cast::<B>(bias, to));
        let [query, key, value] = [query, key, value].map(|tensor| cast::<B>(tensor, to));
        B::attention(query, key, value, mask, bias, options).into()
    }

    fn deform_conv2d_backward(
        x: FloatTensor<Self>,
        offset: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        mask: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        output_grad: FloatTensor<Self>,
        options: DeformConvOptions<2>,
    ) -> DeformConv2dBackward<Self> {
        let seen = [&x, &offset, &weight, &output_grad].map(|tensor| Some(tensor.seen()));
        let to = mode::plan(Rule::Narrow, "deform_conv2d_backward", &seen).operands;
        let [x, offset, weight, output_grad] =
            [x, offset, weight, output_grad].map(|tensor| cast::<B>(tensor, to));
        let [mask, bias] = [mask, bias].map(|tensor| tensor.map(|tensor| cast::<B>(tensor, to)));
        let gradients =
            B::deform_conv2d_backward(x, offset, weight, mask, bias, output_grad, options);
        DeformConv2dBackward::new(
            gradients.x_grad.into(),
            gradients.offset_grad.into(),
            gradients.weight_grad.into(),
            gradients.mask_grad.map(Into::into),
            gradients.bias_grad.map(Into::into),
        )
    }

    fn max_pool1d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> MaxPool1dWithIndices<Self> {
        let x = x.primitive;
        let pooled =
            B::max_pool1d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode);
        MaxPool1dWithIndices::new(pooled.output.into(), pooled.indices)
    }

    fn max_pool1d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool1dBackward<Self> {
        let [x, output_grad] = joined::<B>("max_pool1d_backward", [x, output_grad]);
        let gradient = B::max_pool1d_with_indices_backward(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        );
        MaxPool1dBackward::new(gradient.x_grad.into())
    }

    fn max_pool2d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> MaxPool2dWithIndices<Self> {
        let x = x.primitive;
        let pooled =
            B::max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode);
        MaxPool2dWithIndices::new(pooled.output.into(), pooled.indices)
    }

    fn max_pool2d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool2dBackward<Self> {
        let [x, output_grad] = joined::<B>("max_pool2d_backward", [x, output_grad]);
        let gradient = B::max_pool2d_with_indices_backward(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        );
        MaxPool2dBackward::new(gradient.x_grad.into())
    }

    fn rfft(
        signal: FloatTensor<Self>,
        dim: usize,
        n: Option<usize>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let plan = mode::plan(Rule::Wide, "rfft", &[Some(signal.seen())]);
        let (real, imaginary) = B::rfft(cast::<B>(signal, plan.operands), dim, n);
        let result = |tensor| cast_primitive::<B>(tensor, plan.result).into();
        (result(real), result(imaginary))
    }

    fn has_ctc_loss_backward() -> bool {
        B::has_ctc_loss_backward()
    }
}

/// Both in one format.
fn joined<B: Backend>(
    operation: &'static str,
    tensors: [CastTensor<B::FloatTensorPrimitive>; 2],
) -> [B::FloatTensorPrimitive; 2] {
    let [x, gradient] = &tensors;
    let seen = [Some(x.seen()), Some(gradient.seen())];
    let to = mode::plan(Rule::Join, operation, &seen).operands;
    tensors.map(|tensor| cast::<B>(tensor, to))
}
