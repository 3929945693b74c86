//! Tensors that are read back in the format they were saved in.

use burn_backend::{DType, FloatDType, Shape, TensorData};
use std::cell::RefCell;
use std::collections::HashMap;

thread_local! {
    static RESTORE: RefCell<Option<Restore>> = const { RefCell::new(None) };
}

struct Restore {
    format: DType,
    /// By what Burn has made of them.
    exact: HashMap<(Shape, Vec<u8>), TensorData>,
}

/// Runs `body`, in which every float tensor that is made of data has this format.
///
/// Burn's records go through the backend's default format (32 bits) when they are read back. What
/// has more bits is given beside, in `exact`, and is put in where its rounded numbers come up.
pub fn restoring<T>(
    format: FloatDType,
    exact: impl IntoIterator<Item = TensorData>,
    body: impl FnOnce() -> T,
) -> T {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            RESTORE.set(None);
        }
    }
    let format = DType::from(format);
    let rounded = |data: TensorData| {
        let key = key(&data.clone().convert_dtype(DType::F32));
        (key, data.convert_dtype(format))
    };
    RESTORE.set(Some(Restore {
        format,
        exact: exact.into_iter().map(rounded).collect(),
    }));
    let _done = Done;
    body()
}

fn key(data: &TensorData) -> (Shape, Vec<u8>) {
    (data.shape.clone(), data.as_bytes().to_vec())
}

/// The data of which a tensor is to be made.
pub(crate) fn data(data: TensorData) -> TensorData {
    RESTORE.with_borrow(|restore| match restore {
        None => data,
        Some(restore) => match restore.exact.get(&key(&data)) {
            Some(exact) => exact.clone(),
            None => data.convert_dtype(restore.format),
        },
    })
}
