//! Weights that PyTorch has written.

use super::*;
use std::collections::HashMap;

on_each_backend!(weights_of_pytorch_compute_the_same,);

/// What `tests/it/data/pytorch.py` has in PyTorch, with the field names that it has there.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    scale: LayerNorm<B>,
    fc: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(layout: LinearLayout) -> Self {
        let device = Default::default();
        Self {
            conv: Conv2dConfig::new([2, 3], [2, 2]).init(&device),
            norm: BatchNormConfig::new(3).init(&device),
            scale: LayerNormConfig::new(3).init(&device),
            fc: LinearConfig::new(3, 2).with_layout(layout).init(&device),
        }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self.norm.forward(self.conv.forward(x));
        let x = x.mean_dim(2).mean_dim(3).flatten::<2>(1, 3);
        self.fc.forward(self.scale.forward(x))
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/data")
        .join(name)
}

/// What PyTorch computes with the same weights, in double precision.
#[track_caller]
fn assert_computes_as_pytorch<B: AutodiffBackend>(model: &Net<B>) {
    use burn::module::AutodiffModule;

    let known = std::fs::read_to_string(data("net.json")).unwrap();
    let known: HashMap<String, Vec<f64>> = serde_json::from_str(&known).unwrap();
    let input = TensorData::new(known["input"].clone(), [2, 2, 3, 3]);
    let input = Tensor::from_data(input, &Default::default());
    // In training the normalisation would go by the batch.
    assert_close(
        &values(model.valid().forward(input)),
        &known["output"],
        1e-6,
    );
}

fn weights_of_pytorch_compute_the_same<B: AutodiffBackend>() {
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        for name in [
            "net.pt",
            "net.safetensors",
            "views.pt",
            "legacy.pt",
            "training.pt",
        ] {
            let weights = File::open(data(name)).unwrap().rename_prefix("model.", "");
            let (model, report) = weights.load(Net::<B>::new(layout)).unwrap();
            assert!(report.is_complete(), "{name}: {report}");
            assert_eq!(report.loaded.len(), 10, "{name}");
            assert_computes_as_pytorch(&model);
            // And once more by way of a checkpoint of ours.
            let dir = tempfile::tempdir().unwrap();
            let saved = save(dir.path(), "saved", model);
            let model = checkpoint::load_model(&saved, Net::<B>::new(layout)).unwrap();
            assert_computes_as_pytorch(&model);
        }
    }
}

trained!(Net);

type Cpu = <firebox_ndarray::NdArray as firebox_backend::Accelerator>::Backend;

fn load(path: &Path) -> Result<Net<Cpu>> {
    let (model, _) = File::open(path)?.load(Net::new(LinearLayout::Row))?;
    Ok(model)
}

#[test]
fn a_safetensors_file_says_that_it_is_of_pytorch_or_is_told_so() {
    let bytes = std::fs::read(data("net.safetensors")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    let text = br#""format":"pt""#;
    let place = bytes
        .windows(text.len())
        .position(|part| part == text)
        .unwrap();
    let mut silent = bytes.clone();
    silent[place..place + text.len()].copy_from_slice(br#""farmat":"pt""#);
    std::fs::write(&path, silent).unwrap();
    let error = load(&path).unwrap_err().to_string();
    let parts = [
        "5 parameters loaded; 4 missing in the file: `norm.gamma`, `norm.beta`",
        "`norm.num_batches_tracked`",
        "1 of another shape or kind: `fc.weight: F32 [2, 3] there and F32 [3, 2] here`",
    ];
    for part in parts {
        assert!(error.contains(part), "{error}");
    }
    let told = File::open(&path).unwrap().from_pytorch();
    let (model, _) = told.load(Net::<Cpu>::new(LinearLayout::Row)).unwrap();
    assert_computes_as_pytorch(&model);
}

#[test]
fn a_layer_alone_has_no_name_before_its_parameters() {
    let norm: BatchNorm<Cpu> = BatchNormConfig::new(3).init(&Default::default());
    let dir = tempfile::tempdir().unwrap();
    let norms = ["weight", "bias", "running_mean", "running_var"];
    let three = |name| (name, Dtype::F32, &[3][..], f32s(&[1.0, 2.0, 3.0]));
    let mut tensors: Vec<_> = norms.into_iter().map(three).collect();
    tensors.push(("num_batches_tracked", Dtype::I64, &[], i64s(&[5])));
    let file = file(&dir.path().join("norm.safetensors"), &tensors);
    let (norm, report) = file.from_pytorch().load(norm).unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(values(norm.beta.val()), [1.0, 2.0, 3.0]);
}

#[test]
fn numbers_in_another_order_of_memory_are_refused() {
    let error = load(&data("strided.pt")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let part = "a tensor of shape [3, 2, 2, 2] lies in memory with strides [8, 1, 4, 2]; save \
                it again with `.contiguous()`";
    assert!(error.to_string().contains(part), "{error}");
}

/// Bytes are changed everywhere, and the file is cut at many lengths: that is an error, unless what was
/// changed is no number of a tensor. The other formats have no checksums.
#[test]
fn a_damaged_file_gives_no_other_numbers() {
    let dir = tempfile::tempdir().unwrap();
    for (name, has_checksums) in [
        ("net.pt", true),
        ("legacy.pt", false),
        ("net.safetensors", false),
    ] {
        let whole = std::fs::read(data(name)).unwrap();
        let expected = numbers(&load(&data(name)).unwrap());
        let path = dir.path().join(name);
        let load = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            load(&path).inspect_err(|error| {
                let kind = error.kind();
                assert!(
                    matches!(kind, ErrorKind::Corrupt | ErrorKind::Config),
                    "{error:?}"
                );
            })
        };
        for length in (0..whole.len()).step_by(7) {
            let error = load(&whole[..length]).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::Corrupt,
                "{name}, {length} bytes: {error}"
            );
        }
        for index in (0..whole.len()).step_by(3).filter(|_| has_checksums) {
            let mut bytes = whole.clone();
            bytes[index] ^= 1 << (index % 8);
            if let Ok(model) = load(&bytes) {
                assert_eq!(numbers(&model), expected, "{name}, byte {index}");
            }
        }
    }
}

/// Every number of a model.
fn numbers(model: &Net<Cpu>) -> Vec<Vec<f64>> {
    let norm = &model.norm;
    let parameters = [&norm.gamma, &norm.beta, &model.scale.gamma];
    let more = [&model.conv.bias, &model.scale.beta, &model.fc.bias];
    let parameters = parameters.into_iter().chain(more.into_iter().flatten());
    let mut numbers: Vec<_> = parameters.map(|p| values(p.val())).collect();
    numbers.push(values(norm.running_mean.value()));
    numbers.push(values(norm.running_var.value()));
    numbers.push(values(model.conv.weight.val()));
    numbers.push(values(model.fc.weight.val()));
    numbers
}

#[test]
fn what_is_no_file_of_weights_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: Option<&[u8]>, kind, start: &str| {
        let path = dir.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let error = File::open(&path).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        let start = start.replace('@', &format!("`{}`", path.display()));
        assert!(text.starts_with(&start), "{text}");
    };
    let (config, io, corrupt) = (ErrorKind::Config, ErrorKind::Io, ErrorKind::Corrupt);
    check("none.pt", None, io, "cannot read @");
    check("none.safetensors", None, io, "cannot read @");
    check("none", None, io, "cannot read @");
    check(
        "notes.txt",
        Some(b"notes"),
        config,
        "@ is no file of weights; use a checkpoint's folder",
    );
    let unreadable = "@ cannot be read as a PyTorch file";
    check("empty.pt", Some(b""), corrupt, unreadable);
    check("text.pth", Some(b"notes"), corrupt, unreadable);
    // A pickle of a dictionary of numbers.
    check(
        "numbers.bin",
        Some(b"\x80\x02}X\x01\x00\x00\x00aK\x01s."),
        corrupt,
        unreadable,
    );
    let noise: Vec<u8> = (0..5000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    check("noise.pt", Some(&noise), corrupt, unreadable);
    let path = dir.path().join("noise.safetensors");
    std::fs::write(&path, &noise).unwrap();
    let error = File::open(&path).unwrap_err();
    assert_eq!(error.kind(), corrupt, "{error}");
    let start = format!("{}: no safetensors", path.display());
    assert!(error.to_string().starts_with(&start), "{error}");
    let error = File::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), corrupt, "{error}");
}
