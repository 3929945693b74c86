//! The network: plain Burn, nothing about training or hardware.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, Relu};
use burn::tensor::{Tensor, backend::Backend};

/// The small convolutional network of Burn's guide.
#[derive(Module, Debug)]
pub struct ConvNet<B: Backend> {
    conv1: Conv2d<B>,
    conv2: Conv2d<B>,
    pool: AdaptiveAvgPool2d,
    dropout: Dropout,
    linear1: Linear<B>,
    linear2: Linear<B>,
    activation: Relu,
}

impl<B: Backend> ConvNet<B> {
    pub fn new(dropout: f64, device: &B::Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            dropout: DropoutConfig::new(dropout).init(),
            linear1: LinearConfig::new(16 * 8 * 8, 512).init(device),
            linear2: LinearConfig::new(512, 10).init(device),
            activation: Relu::new(),
        }
    }

    /// Images `[batch, 28, 28]` to logits `[batch, 10]`.
    pub fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let [batch, height, width] = images.dims();
        let x = images.reshape([batch, 1, height, width]);
        let x = self.dropout.forward(self.conv1.forward(x));
        let x = self.dropout.forward(self.conv2.forward(x));
        let x = self.pool.forward(self.activation.forward(x));
        let x = self.linear1.forward(x.reshape([batch, 16 * 8 * 8]));
        let x = self.activation.forward(self.dropout.forward(x));
        self.linear2.forward(x)
    }
}
