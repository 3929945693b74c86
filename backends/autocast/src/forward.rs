//! How an operation is passed on to the backend inside.

/// Operations on floats: operands are brought to one format by the rule, the operation is that of
/// the backend inside. `F` is a float tensor, `OptF` one that may be absent, `I`, `Bool` and `Q` are
/// integers, Booleans and quantized tensors.
macro_rules! forward {
    ($rule:expr => $($name:ident($($arg:ident: $type:tt),* $(,)?) -> $out:tt;)*) => {$(
        fn $name($($arg: ty!($type)),*) -> ty!($out) {
            let seen = [$(seen!($type $arg)),*];
            let plan = $crate::mode::Plan::new($rule, stringify!($name), &seen);
            let watched = $crate::watch::is_on().then(|| {
                let tag = seen.iter().flatten().find_map(|seen| seen.tag);
                let finite = $crate::watch::operands::<B>(&seen, [$(primitive!($type $arg)),*]);
                (finite, tag.map(|tag| tag.path.clone()))
            });
            let out = B::$name($(pass!($type $arg plan)),*);
            done!($out out plan $rule, stringify!($name), watched)
        }
    )*};
}

/// Operations without floats.
macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:tt),* $(,)?) -> $out:tt;)*) => {$(
        fn $name($($arg: ty!($type)),*) -> ty!($out) {
            give!($out B::$name($($arg),*))
        }
    )*};
}

macro_rules! ty {
    (F) => { FloatTensor<Self> };
    (OptF) => { Option<FloatTensor<Self>> };
    (I) => { IntTensor<Self> };
    (Bool) => { BoolTensor<Self> };
    (Q) => { QuantizedTensor<Self> };
    (P) => { TensorPrimitive<Self> };
    (($type:ty)) => { $type };
    ($type:tt) => { $type };
}

macro_rules! seen {
    (F $arg:ident) => {
        Some($arg.seen())
    };
    (OptF $arg:ident) => {
        $arg.as_ref().map(|tensor| tensor.seen())
    };
    ($type:tt $arg:ident) => {
        None::<$crate::tensor::Seen<'_>>
    };
}

macro_rules! primitive {
    (F $arg:ident) => {
        Some(&$arg.primitive)
    };
    (OptF $arg:ident) => {
        $arg.as_ref().map(|tensor| &tensor.primitive)
    };
    ($type:tt $arg:ident) => {
        None
    };
}

macro_rules! pass {
    (F $arg:ident $plan:ident) => {
        $crate::tensor::cast::<B>($arg, $plan.operands)
    };
    (OptF $arg:ident $plan:ident) => {
        $arg.map(|tensor| $crate::tensor::cast::<B>(tensor, $plan.operands))
    };
    ($type:tt $arg:ident $plan:ident) => {
        $arg
    };
}

macro_rules! done {
    (F $out:ident $plan:ident $rule:expr, $name:expr, $watched:ident) => {{
        let out = $crate::CastTensor {
            primitive: $crate::tensor::cast_primitive::<B>($out, $plan.result),
            tag: $plan.tag,
        };
        if let Some((true, parameter)) = $watched
            && !matches!($rule, Rule::Made | Rule::Masks)
        {
            $crate::watch::result::<B>($name, parameter, &out);
        }
        out
    }};
    ($type:tt $out:ident $plan:ident $rule:expr, $name:expr, $watched:ident) => {{
        let _ = ($watched, $plan.tag);
        $out
    }};
}

macro_rules! give {
    (P $out:expr) => {
        match $out {
            burn_backend::TensorPrimitive::Float(tensor) => {
                burn_backend::TensorPrimitive::Float(tensor.into())
            }
            burn_backend::TensorPrimitive::QFloat(tensor) => {
                burn_backend::TensorPrimitive::QFloat(tensor)
            }
        }
    };
    ($type:tt $out:expr) => {
        $out
    };
}
