//! Files that fit a model in part, or not at all.

use super::*;

on_each_backend!(
    everything_that_does_not_fit_is_named,
    partial_takes_what_fits,
    prefixes_are_replaced,
    numbers_become_those_of_the_model,
    whole_numbers_that_do_not_fit_are_refused,
);

fn everything_that_does_not_fit_is_named<B: AutodiffBackend>() {
    let dir = tempfile::tempdir().unwrap();
    let linear: Linear<B> = LinearConfig::new(2, 1).init(&Default::default());
    let with = |name: &str, tensors: &[_]| {
        let path = dir.path().join(name);
        let error = file(&path, tensors).load(linear.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        let start = format!("`{}` does not fit this model: ", path.display());
        text.strip_prefix(&start)
            .unwrap_or_else(|| panic!("{text}"))
            .to_owned()
    };
    let weight = ("weight", Dtype::F32, &[1, 2][..], f32s(&[1.0, 2.0]));
    let integer = ("bias", Dtype::I64, &[1][..], i64s(&[1]));
    let extra = ("extra", Dtype::F32, &[1][..], f32s(&[1.0]));
    assert_eq!(
        with("a.safetensors", &[weight.clone(), extra]),
        "0 parameters loaded; 1 missing in the file: `bias`; 1 not in the model: `extra`; \
         1 of another shape or kind: `weight: F32 [1, 2] there and F32 [2, 1] here`"
    );
    assert_eq!(
        with("b.safetensors", &[weight, integer]),
        "0 parameters loaded; 2 of another shape or kind: `weight: F32 [1, 2] there and F32 \
         [2, 1] here`, `bias: I64 [1] there and F32 [1] here`"
    );
}

fn partial_takes_what_fits<B: AutodiffBackend>() {
    let dir = tempfile::tempdir().unwrap();
    let linear: Linear<B> = LinearConfig::new(2, 1).init(&Default::default());
    let before = values(linear.weight.val());
    let path = dir.path().join("some.safetensors");
    let some = [
        ("bias", Dtype::F32, &[1][..], f32s(&[7.0])),
        ("weight", Dtype::F32, &[1, 2][..], f32s(&[1.0, 2.0])),
        ("z", Dtype::F32, &[1][..], f32s(&[1.0])),
        ("a", Dtype::F32, &[1][..], f32s(&[1.0])),
    ];
    let (linear, report) = file(&path, &some).partial().load(linear).unwrap();
    let mismatched = |report: &LoadReport| -> Vec<String> {
        let named = report.mismatched.iter();
        named
            .map(|m| format!("{}: {} / {}", m.path, m.file, m.model))
            .collect()
    };
    assert_eq!(report.loaded, ["bias"]);
    assert!(report.missing.is_empty());
    assert_eq!(report.unexpected, ["a", "z"]);
    assert_eq!(mismatched(&report), ["weight: F32 [1, 2] / F32 [2, 1]"]);
    assert!(!report.is_complete());
    assert_eq!(values(linear.bias.as_ref().unwrap().val()), [7.0]);
    assert_eq!(values(linear.weight.val()), before, "it stays as it was");

    let fits = ("weight", Dtype::F32, &[2, 1][..], f32s(&[1.0, 2.0]));
    let (linear, report) = file(&path, &[fits]).partial().load(linear).unwrap();
    assert_eq!(
        (report.loaded, report.missing),
        (vec!["weight".into()], vec!["bias".into()])
    );
    assert_eq!(
        values(linear.bias.as_ref().unwrap().val()),
        [7.0],
        "it stays as it was"
    );

    let error = file(&path, &some[2..]).partial().load(linear).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "does not fit this model: 0 parameters loaded; 2 missing in the file: `weight`, \
             `bias`; 2 not in the model: `a`, `z`"
        ),
        "{error}"
    );
}

fn prefixes_are_replaced<B: AutodiffBackend>() {
    let dir = tempfile::tempdir().unwrap();
    let linear: Linear<B> = LinearConfig::new(2, 1).init(&Default::default());
    let path = dir.path().join("prefixed.safetensors");
    let tensors = [
        ("net.fc.weight", Dtype::F32, &[2, 1][..], f32s(&[1.0, 2.0])),
        ("net.fc.bias", Dtype::F32, &[1][..], f32s(&[3.0])),
    ];
    let weights = file(&path, &tensors).rename_prefix("net.fc.", "");
    let (loaded, report) = weights.clone().load(linear.clone()).unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(values(loaded.weight.val()), [1.0, 2.0]);
    // The first prefix that matches is the one.
    let (_, report) = weights
        .rename_prefix("net.", "other.")
        .load(linear.clone())
        .unwrap();
    assert!(report.is_complete(), "{report}");
    // To put a part where it belongs.
    let stack = vec![linear.clone(), linear.clone()];
    let second = file(&path, &tensors).rename_prefix("net.fc", "1").partial();
    let (stack, report) = second.load(stack).unwrap();
    assert_eq!(report.loaded, ["1.weight", "1.bias"]);
    assert_eq!(report.missing, ["0.weight", "0.bias"]);
    assert_eq!(values(stack[1].weight.val()), [1.0, 2.0]);

    let twice = [
        ("a.bias", Dtype::F32, &[1][..], f32s(&[1.0])),
        ("b.bias", Dtype::F32, &[1][..], f32s(&[2.0])),
    ];
    let same = file(&path, &twice)
        .rename_prefix("a.", "")
        .rename_prefix("b.", "");
    let error = same.load(linear).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("are called `bias` once their prefixes are replaced"),
        "{error}"
    );
}

/// 1.5, -0.25 and 65504 (the largest of 16 bits) in each format, as its bits.
fn numbers_become_those_of_the_model<B: AutodiffBackend>() {
    let dir = tempfile::tempdir().unwrap();
    let f16 = [0x3e00_u16, 0xb400, 0x7bff]
        .iter()
        .flat_map(|b| b.to_le_bytes());
    let bf16 = [0x3fc0_u16, 0xbe80, 0x4780]
        .iter()
        .flat_map(|b| b.to_le_bytes());
    let f64s = [1.5_f64, -0.25, 65504.0]
        .iter()
        .flat_map(|v| v.to_le_bytes());
    let formats = [
        ("f16", Dtype::F16, f16.collect(), 65504.0),
        ("bf16", Dtype::BF16, bf16.collect(), 65536.0),
        ("f64", Dtype::F64, f64s.collect(), 65504.0),
        ("f32", Dtype::F32, f32s(&[1.5, -0.25, 65504.0]), 65504.0),
    ];
    for (name, dtype, bytes, largest) in formats {
        let path = dir.path().join(format!("{name}.safetensors"));
        let model = vec![Param::<Tensor<B, 1>>::from_data(
            [0.0, 0.0, 0.0],
            &Default::default(),
        )];
        let (model, report) = file(&path, &[("0", dtype, &[3], bytes)])
            .load(model)
            .unwrap();
        assert!(report.is_complete(), "{name}: {report}");
        assert_eq!(values(model[0].val()), [1.5, -0.25, largest], "{name}");
        assert_eq!(
            model[0].val().dtype(),
            Tensor::<B, 1>::zeros([1], &Default::default()).dtype()
        );
    }
}

/// A model whose parameters are whole numbers.
#[derive(Module, Debug)]
struct Counters<B: Backend> {
    counts: Param<Tensor<B, 1, Int>>,
    unused: Param<Tensor<B, 1>>,
}

impl<B: Backend> Counters<B> {
    fn new() -> Self {
        let device = Default::default();
        Self {
            counts: int(TensorData::from([0_i32, 0]), &device),
            unused: Param::from_data([0.0], &device),
        }
    }
}

fn whole_numbers_that_do_not_fit_are_refused<B: AutodiffBackend>() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("counts.safetensors");
    let with = |dtype, bytes| {
        let counts = ("counts", dtype, &[2][..], bytes);
        let unused = ("unused", Dtype::F32, &[1][..], f32s(&[0.0]));
        let (model, _) = file(&path, &[counts, unused]).load(Counters::<B>::new())?;
        Ok::<_, Error>(
            model
                .counts
                .val()
                .into_data()
                .iter::<i64>()
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(with(Dtype::U8, vec![0, 255]).unwrap(), [0, 255]);
    assert_eq!(
        with(Dtype::I64, i64s(&[-7, 1 << 30])).unwrap(),
        [-7, 1 << 30]
    );
    let large = 1_i64 << 62;
    match with(Dtype::I64, i64s(&[1, large])) {
        // Where whole numbers have 64 bits.
        Ok(counts) => assert_eq!(counts, [1, large]),
        Err(error) => assert!(error.to_string().contains("counts"), "{error}"),
    }
    let error = with(Dtype::U64, i64s(&[1, -1])).unwrap_err();
    assert!(error.to_string().contains("counts"), "{error}");
}
