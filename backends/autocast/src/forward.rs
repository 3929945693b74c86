//! How an operation is passed on to the backend inside.

/// Operations on floats: operands are brought to one format by the rule, the operation is that of
/// the backend inside. `F` is a float tensor, `OptF` one that may be absent, `I`, `Bool` and `Q` are
/// integers, Booleans and quantized tensors.
macro_rules! forward {
    ($rule:ident => $($name:ident($($arg:ident: $type:tt),* $(,)?) -> $out:tt;)*) => {$(
        fn $name($($arg: ty!($type)),*) -> ty!($out) {
            let seen = [$(seen!($type $arg)),*];
            // Nearly always there is nothing to choose.
            if $crate::mode::is_quiet() && $crate::mode::is_one_format(&seen) {
                let tag = tag!($rule $($type $arg)*);
                let out = B::$name($(bare!($type $arg)),*);
                return wrap!($out out tag);
            }
            let plan = $crate::mode::plan($crate::mode::Rule::$rule, stringify!($name), &seen);
            let watched = $crate::watch::is_on().then(|| {
                $crate::watch::operands::<B>(&seen, [$(primitive!($type $arg)),*])
            });
            let tag = tag!($rule $($type $arg)*);
            let out = B::$name($(pass!($type $arg plan)),*);
            done!($out out tag plan $rule, stringify!($name), watched)
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

/// The tensor of the backend inside, as it is.
macro_rules! bare {
    (F $arg:ident) => {
        $arg.primitive
    };
    (OptF $arg:ident) => {
        $arg.map(|tensor| tensor.primitive)
    };
    ($type:tt $arg:ident) => {
        $arg
    };
}

/// The tensor of the backend inside, in the format of the plan.
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

/// The parameter that the result is: that of the operand, of which it is a view.
macro_rules! tag {
    (View F $arg:ident $($rest:tt)*) => {
        $arg.tag.clone()
    };
    ($rule:ident $($rest:tt)*) => {
        None
    };
}

macro_rules! wrap {
    (F $out:ident $tag:ident) => {
        $crate::CastTensor {
            primitive: $out,
            tag: $tag,
        }
    };
    ($type:tt $out:ident $tag:ident) => {{
        let _: Option<std::sync::Arc<$crate::Tag>> = $tag;
        $out
    }};
}

macro_rules! done {
    (F $out:ident $tag:ident $plan:ident $rule:ident, $name:expr, $watched:ident) => {{
        let primitive = $crate::tensor::cast_primitive::<B>($out, $plan.result);
        let out = wrap!(F primitive $tag);
        if let Some(parameter) = $watched.flatten() {
            $crate::watch::result::<B>($crate::mode::Rule::$rule, $name, parameter, &out);
        }
        out
    }};
    ($type:tt $out:ident $tag:ident $plan:ident $rule:ident, $name:expr, $watched:ident) => {{
        let _ = $watched;
        wrap!($type $out $tag)
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
