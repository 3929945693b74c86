//! Which parameter a tensor is.

use std::cell::RefCell;
use std::sync::Arc;

/// The parameter that a tensor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// Its path in the model.
    pub path: String,
    /// Whether products with it are computed in the parameter's own format in
    /// [`Mode::Mixed`](crate::Mode::Mixed).
    pub keeps: bool,
}

thread_local! {
    static NEXT: RefCell<Option<Arc<Tag>>> = const { RefCell::new(None) };
}

/// Marks as the parameter `tag` every tensor that `body` detaches. A backend without
/// [`Autocast`](crate::Autocast) takes no notice.
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_flex::Flex;
/// use firebox_autocast::{Autocast, Tag, mark};
///
/// let weight = Tensor::<Autocast<Flex>, 2>::ones([2, 2], &Default::default());
/// let tag = Tag { path: "head.weight".into(), keeps: true };
/// let weight = mark(tag, || weight.detach());
/// ```
pub fn mark<T>(tag: Tag, body: impl FnOnce() -> T) -> T {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            NEXT.set(None);
        }
    }
    NEXT.set(Some(Arc::new(tag)));
    let _restore = Restore;
    body()
}

pub(crate) fn next() -> Option<Arc<Tag>> {
    NEXT.with_borrow(Clone::clone)
}
