//! Floats in JSON, with every bit of them: JSON itself has no NaN and no infinity.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A float that survives JSON: a number where it is finite, else text (`NaN`, `inf`, `-inf`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Exact(pub(crate) f64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Text(String),
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.is_finite() {
            true => serializer.serialize_f64(self.0),
            false => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Self(number)),
            Written::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::Exact;

    #[test]
    fn every_float_comes_back() {
        for value in [
            0.1 + 0.2,
            -0.0,
            5e-324,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ] {
            let text = serde_json::to_string(&Exact(value)).unwrap();
            let Exact(read) = serde_json::from_str(&text).unwrap();
            assert_eq!(read.to_bits(), value.to_bits(), "{text}");
        }
        let text = serde_json::to_string(&Exact(f64::NAN)).unwrap();
        assert!(serde_json::from_str::<Exact>(&text).unwrap().0.is_nan());
        assert!(serde_json::from_str::<Exact>("\"x\"").is_err());
    }
}
