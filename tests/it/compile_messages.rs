//! What the compiler says about a program that misses a piece: our words first, not the bounds.
//!
//! `TRYBUILD=overwrite cargo test --test it compile_messages` writes the `.stderr` files anew.

#[test]
fn the_compiler_names_what_is_missing() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
