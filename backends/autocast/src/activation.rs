//! Activations.

use crate::Autocast;
use burn_backend::ops::ActivationOps;
use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, Scalar};

impl<B: Backend> ActivationOps<Self> for Autocast<B> {
    forward! {
        AsIs =>
        leaky_relu(tensor: F, negative_slope: Scalar) -> F;
        relu(tensor: F) -> F;
        sigmoid(tensor: F) -> F;
        hard_sigmoid(tensor: F, alpha: Scalar, beta: Scalar) -> F;
    }

    forward! {
        Join =>
        relu_backward(output: F, grad: F) -> F;
        sigmoid_backward(output: F, grad: F) -> F;
        prelu(tensor: F, alpha: F) -> F;
    }

    forward! {
        Through =>
        gelu(tensor: F) -> F;
        gelu_backward(x: F, grad: F) -> F;
    }

    forward! {
        Wide =>
        log_sigmoid(tensor: F) -> F;
        log_sigmoid_backward(x: F, grad: F) -> F;
        softmax(tensor: F, dim: usize) -> F;
        log_softmax(tensor: F, dim: usize) -> F;
        softmin(tensor: F, dim: usize) -> F;
    }
}
