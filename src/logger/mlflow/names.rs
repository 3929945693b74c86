//! Names and values in the form that MLflow takes.

use serde_json::Value;
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64;

/// MLflow's limits, in characters. Servers before 2.11 take tags of 5000 at most.
const NAME_LIMIT: usize = 250;
const PARAM_LIMIT: usize = 6000;
const TAG_LIMIT: usize = 5000;

/// The name under which MLflow keeps a value.
///
/// MLflow allows letters, digits and `_-. /`, and no empty or dotted part between slashes (`:` only
/// in newer servers, and not on Windows). Another character is written as its code point, so that
/// no two names become one: `acc@5` is `acc_x40_5`.
pub(super) fn key(name: &str) -> Cow<'_, str> {
    let allowed = |c: char| c.is_alphanumeric() || "_-. /".contains(c);
    let plain = |part: &str| !part.is_empty() && part != "." && !part.starts_with("..");
    let fits = name.chars().count() <= NAME_LIMIT;
    if fits && name.chars().all(allowed) && name.split('/').all(plain) {
        return Cow::Borrowed(name);
    }
    let mut key = String::with_capacity(name.len());
    for (index, part) in name.split('/').enumerate() {
        if index > 0 {
            key.push('/');
        }
        if !plain(part) {
            key.push('_');
        }
        for c in part.chars() {
            match allowed(c) {
                true => key.push(c),
                false => key.push_str(&format!("_x{:x}_", u32::from(c))),
            }
        }
    }
    if key.chars().count() > NAME_LIMIT {
        // The hash keeps long names apart.
        let kept: String = key.chars().take(NAME_LIMIT - 17).collect();
        key = format!("{kept}_{:016x}", xxh3_64(name.as_bytes()));
    }
    Cow::Owned(key)
}

/// A tag's value, cut to MLflow's limit.
pub(super) fn tag_value(value: &str) -> String {
    cut(value, TAG_LIMIT)
}

/// A tree of settings as MLflow's flat parameters: `{"model": {"layers": 2}}` under the prefix
/// `trainer` is `trainer.model.layers` = `2`. Lists are kept in one piece, as JSON.
pub(super) fn flatten(prefix: &str, value: &Value) -> Vec<(String, String)> {
    let mut params = Vec::new();
    walk(prefix, value, &mut params);
    params
}

fn walk(name: &str, value: &Value, params: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (field, value) in fields {
                match name {
                    "" => walk(field, value, params),
                    _ => walk(&format!("{name}.{field}"), value, params),
                }
            }
        }
        Value::String(text) => params.push((key(name).into_owned(), cut(text, PARAM_LIMIT))),
        other => params.push((key(name).into_owned(), cut(&other.to_string(), PARAM_LIMIT))),
    }
}

fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_that_mlflow_refuses_are_written_otherwise() {
        for same in ["val/loss", "lr-Adam.0 x", "größe", ".hidden", "a..b"] {
            assert!(matches!(key(same), Cow::Borrowed(_)), "{same}");
        }
        for (name, expected) in [
            ("acc@5", "acc_x40_5"),
            ("a:b", "a_x3a_b"),
            ("", "_"),
            ("/a//b/", "_/a/_/b/_"),
            ("../up/.", "_../up/_."),
        ] {
            assert_eq!(key(name), expected, "{name}");
        }
        let long = ["é".repeat(250), "é".repeat(251), "é".repeat(252)];
        let keys: Vec<_> = long.iter().map(|name| key(name)).collect();
        assert_eq!(keys[0], long[0]);
        assert_eq!(keys[1].chars().count(), 250);
        assert_ne!(keys[1], keys[2]);
    }

    #[test]
    fn settings_become_flat() {
        let net = json!({"sizes": [1, 2], "b": true});
        let value = json!({"lr": 0.001, "name": "x", "none": null, "empty": {}, "net": net});
        let params = flatten("t", &value);
        let params: Vec<_> = params.iter().map(|(k, v)| (&**k, &**v)).collect();
        let expected = [
            ("t.lr", "0.001"),
            ("t.name", "x"),
            ("t.none", "null"),
            ("t.empty", "{}"),
            ("t.net.sizes", "[1,2]"),
            ("t.net.b", "true"),
        ];
        assert_eq!(params, expected);
        assert_eq!(flatten("", &json!({"a": {"b": 1}}))[0].0, "a.b");
        assert_eq!(flatten("", &json!(3)), [("_".into(), "3".into())]);

        let long = flatten("", &json!({"a": "ü".repeat(6001), "b": "ü".repeat(6000)}));
        assert_eq!(long[0].1.chars().count(), 6000);
        assert!(long[0].1.ends_with('…'));
        assert_eq!(long[1].1, "ü".repeat(6000));
    }
}
