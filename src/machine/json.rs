//! Owns: `Json`, the text of one JSON value, and `List`, the text of an array. The store keeps them without parsing.
//! Never: builds a tree of a value that a client chose. A tree takes up to a hundred times the memory of its text, and
//! it would change numbers that fit no 64 bits.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use schemars::r#gen::SchemaGenerator;
use schemars::schema::Schema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::value::RawValue;

/// An app-defined JSON object (`metadata`, `origin`). Ordered, so that equal objects print equal text.
pub type Object = serde_json::Map<String, serde_json::Value>;

/// The kind of a value, for error messages.
pub fn kind_of(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The text of exactly one JSON value, cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// Serialises a value. Our own types cannot fail: they have string keys and finite numbers.
    pub fn print<T: Serialize>(value: &T) -> Json {
        let text = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        Json(text.into())
    }

    /// Serialises a value of about this many bytes. The value is dropped before the text is copied into its final
    /// place, so that a large one is in memory twice and not three times.
    pub fn print_owned<T: Serialize>(value: T, bytes: usize) -> Json {
        let mut text = Vec::with_capacity(bytes);
        let printed = serde_json::to_writer(&mut text, &value);
        drop(value);
        match (printed, str::from_utf8(&text)) {
            (Ok(()), Ok(text)) => Json(text.into()),
            _ => Json("null".into()),
        }
    }

    /// Takes over text that is one JSON value. Whitespace between tokens is removed, because stored texts are lines of
    /// files; everything else, numbers too, stays as written.
    pub fn from_raw(raw: &RawValue) -> Result<Json, JsonError> {
        let text = raw.get();
        let mut dense = 0;
        for token in Tokens(text) {
            check(token)?;
            dense += token.len();
        }
        if dense == text.len() {
            return Ok(Json(text.into()));
        }
        let mut compact = String::with_capacity(dense);
        compact.extend(Tokens(text));
        Ok(Json(compact.into()))
    }

    /// The same object with another value in one of its fields; unchanged if it has no such field.
    pub fn with_field(&self, name: &str, change: impl FnOnce(&str) -> Option<Json>) -> Json {
        let Some(old) = self.field(name) else { return self.clone() };
        let Some(new) = change(old) else { return self.clone() };
        let start = old.as_ptr().addr() - self.0.as_ptr().addr();
        let (before, after) = (&self.0[..start], &self.0[start + old.len()..]);
        Json([before, new.text(), after].concat().into())
    }

    /// The text of one field of an object, found without parsing the others.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut reader = serde_json::Deserializer::from_str(&self.0);
        de::DeserializeSeed::deserialize(OneField(name), &mut reader).ok().flatten().map(RawValue::get)
    }

    /// The same value with long strings cut after `chars_max` characters, and an ellipsis in place of the rest. Names of
    /// fields stay whole.
    pub fn shortened(&self, chars_max: usize) -> Json {
        // A string of so many bytes cannot have more characters.
        if self.0.len() <= chars_max {
            return self.clone();
        }
        let mut short = String::with_capacity(self.0.len().min(8 << 10));
        let mut tokens = Tokens(&self.0).peekable();
        while let Some(token) = tokens.next() {
            let is_name = tokens.peek() == Some(&":");
            match token.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
                Some(text) if !is_name && text.len() > chars_max => push_shortened(&mut short, text, chars_max),
                _ => short.push_str(token),
            }
        }
        Json(short.into())
    }

    pub fn is_object(&self) -> bool {
        self.0.starts_with('{')
    }

    /// Wraps text that `print` produced earlier (read back from disk or wire). Does not validate it.
    pub fn adopt(text: &str) -> Json {
        Json(text.into())
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    pub fn parse<T: de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    pub fn value(&self) -> serde_json::Value {
        self.parse().unwrap_or(serde_json::Value::Null)
    }
}

impl Default for Json {
    fn default() -> Json {
        Json::adopt("null")
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Json::from_raw(&raw).map_err(de::Error::custom)
    }
}

impl JsonSchema for Json {
    fn is_referenceable() -> bool {
        serde_json::Value::is_referenceable()
    }

    fn schema_name() -> String {
        serde_json::Value::schema_name()
    }

    fn json_schema(generator: &mut schemars::r#gen::SchemaGenerator) -> schemars::schema::Schema {
        serde_json::Value::json_schema(generator)
    }
}

/// The text of an object that the application defines, such as an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonObject(Json);

impl JsonObject {
    pub fn text(&self) -> &str {
        self.0.text()
    }

    pub fn into_json(self) -> Json {
        self.0
    }
}

/// The published schema is that of any object.
impl JsonSchema for JsonObject {
    fn is_referenceable() -> bool {
        Object::is_referenceable()
    }

    fn schema_name() -> String {
        Object::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Object::json_schema(generator)
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonObject, D::Error> {
        let json = Json::deserialize(deserializer)?;
        if json.is_object() {
            return Ok(JsonObject(json));
        }
        // The same words as for any other value of a wrong type.
        let error = json.parse::<std::collections::BTreeMap<String, de::IgnoredAny>>().err();
        let why = error.map(|error| error.to_string()).unwrap_or_default();
        Err(de::Error::custom(why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why)))
    }
}

/// Finds one field of an object and skips the others.
struct OneField<'a>(&'a str);

impl<'de> de::DeserializeSeed<'de> for OneField<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> de::Visitor<'de> for OneField<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<de::IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Why valid JSON is not accepted: other readers of JSON would fail on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonError {
    /// `\ud800` without its other half is not a character.
    LoneSurrogate(String),
    /// Larger than any 64-bit float.
    NumberOutOfRange(String),
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::LoneSurrogate(escape) => {
                write!(f, "a string contains `{escape}`, which is half a character: write both halves, or neither")
            }
            JsonError::NumberOutOfRange(number) => write!(f, "number out of range: write {number} as a string"),
        }
    }
}

impl std::error::Error for JsonError {}

/// The tokens of valid JSON, without the whitespace between them.
#[derive(Clone, Copy)]
pub struct Tokens<'a>(pub &'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_ascii_start();
        let length = match text.as_bytes().first()? {
            b'"' => string_length(text.as_bytes()),
            b'{' | b'}' | b'[' | b']' | b':' | b',' => 1,
            // A number, or one of true, false and null.
            _ => text.bytes().position(|byte| b" \t\r\n,:]}".contains(&byte)).unwrap_or(text.len()),
        };
        let (token, rest) = text.split_at(length);
        self.0 = rest;
        Some(token)
    }
}

/// The first integer that would come back as another number if the text were parsed as a tree.
pub fn integer_beyond_64_bits(text: &str) -> Option<&str> {
    let is_integer = |token: &&str| token.strip_prefix('-').unwrap_or(token).bytes().all(|byte| byte.is_ascii_digit());
    Tokens(text).filter(is_integer).find(|token| token.parse::<i64>().is_err() && token.parse::<u64>().is_err())
}

/// How many values an array or an object contains, at any depth, without parsing it.
pub fn values_below(text: &str) -> usize {
    let (mut values, mut keys) = (0usize, 1);
    for token in Tokens(text) {
        match token {
            ":" => keys += 1,
            "," | "}" | "]" => {}
            _ => values += 1,
        }
    }
    values.saturating_sub(keys)
}

/// Writes the beginning of the text of a string, which may have escapes. An escape counts as one character and stays
/// whole; so does a pair of escapes that stands for one character.
fn push_shortened(out: &mut String, text: &str, chars_max: usize) {
    let mut end = 0;
    for _ in 0..chars_max {
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let rest = &text[end..];
        end += match rest.as_bytes() {
            [] => break,
            [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..] => rest.len().min(12),
            [b'\\', b'u', ..] => rest.len().min(6),
            [b'\\', ..] => rest.len().min(2),
            _ => rest.chars().next().map_or(0, char::len_utf8),
        };
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    out.push('"');
    out.push_str(&text[..end]);
    if end < text.len() {
        out.push('…');
    }
    out.push('"');
}

fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

fn check(token: &str) -> Result<(), JsonError> {
    match token.as_bytes().first() {
        Some(b'"') if token.contains('\\') => check_escapes(token),
        // Only a number with an exponent or with hundreds of digits can be out of range.
        Some(b'-' | b'0'..=b'9') if token.len() > 300 || token.contains(['e', 'E']) => match token.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(()),
            Ok(_) | Err(_) => Err(JsonError::NumberOutOfRange(token.chars().take(40).collect())),
        },
        _ => Ok(()),
    }
}

/// Both halves of a surrogate pair must be there, in order.
fn check_escapes(token: &str) -> Result<(), JsonError> {
    let mut rest = token;
    while let Some(at) = rest.find('\\') {
        rest = &rest[at..];
        let lone = || JsonError::LoneSurrogate(rest.chars().take(6).collect());
        let length = match unit(rest) {
            Some(0xd800..=0xdbff) => match unit(rest.get(6..).unwrap_or_default()) {
                Some(0xdc00..=0xdfff) => 12,
                Some(_) | None => return Err(lone()),
            },
            Some(0xdc00..=0xdfff) => return Err(lone()),
            Some(_) => 6,
            None => 2,
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(())
}

/// The UTF-16 unit of an escape such as `\u00e9` at the start of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// An array of `T`, checked and kept as text: its elements are parsed one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T>(Json, PhantomData<T>);

impl<T> List<T> {
    pub fn text(&self) -> &str {
        self.0.text()
    }

    pub fn into_json(self) -> Json {
        self.0
    }

    pub fn is_empty(&self) -> bool {
        self.text() == "[]"
    }
}

impl<T: Serialize> List<T> {
    pub fn of(items: &[T]) -> List<T> {
        List(Json::print(&items), PhantomData)
    }
}

impl<T: de::DeserializeOwned> List<T> {
    /// Its elements, parsed. Empty if they cannot be parsed.
    pub fn items(&self) -> Vec<T> {
        self.0.parse().unwrap_or_default()
    }
}

impl<T> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de> + Serialize> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Serialize> de::Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<List<T>, A::Error> {
        let mut text = vec![b'['];
        while let Some(item) = items.next_element::<T>()? {
            if text.len() > 1 {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, &item).map_err(de::Error::custom)?;
        }
        text.push(b']');
        let text = str::from_utf8(&text).map_err(de::Error::custom)?;
        Ok(List(Json(text.into()), PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for List<T> {
    fn is_referenceable() -> bool {
        false
    }

    fn schema_name() -> String {
        Vec::<T>::schema_name()
    }

    fn json_schema(generator: &mut schemars::r#gen::SchemaGenerator) -> schemars::schema::Schema {
        Vec::<T>::json_schema(generator)
    }
}

/// The canonical text of a value: keys sorted, negative zero written as zero. Equal values have equal texts.
/// The metadata index hashes this text, so that deep equality becomes equality of bytes.
pub fn canonical(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let fields: Vec<String> = keys
                .iter()
                .map(|key| format!("{}:{}", Value::from(key.as_str()), canonical(&map[key.as_str()])))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Number(number) if number.as_f64() == Some(0.0) && number.is_f64() => "0.0".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<String, String> {
        serde_json::from_str::<Json>(text).map(|json| json.text().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_and_keys_stay_as_they_were_written() {
        for text in [
            "12345678901234567890123",
            "-98765432109876543210",
            "0.1000000000000000055511151231257827",
            "1.0",
            "1e2",
            r#"{"b":1,"a":[2,{}]}"#,
            r#""\u00e9 \ud83e\udd80""#,
        ] {
            assert_eq!(read(text).as_deref(), Ok(text));
        }
        assert_eq!(read("{ \"a b\" :\n[ 1 ,\t\" x \" ] }").as_deref(), Ok(r#"{"a b":[1," x "]}"#));
    }

    #[test]
    fn what_other_readers_cannot_read_is_refused() {
        for text in [r#"{"a":"\ud800"}"#, r#""\udc00""#, r#""\ud800\ud800""#, r#""\ud800x""#] {
            assert!(read(text).unwrap_err().contains("half a character"), "{text}");
        }
        for text in ["1e999", "[-1E400]", &"9".repeat(400)] {
            assert!(read(text).unwrap_err().contains("number out of range"), "{text}");
        }
    }

    #[test]
    fn one_field_is_replaced_in_place() {
        let json = Json::adopt(r#"{"a":{"tail":1},"tail":"e1","z":12345678901234567890123}"#);
        let changed = json.with_field("tail", |old| {
            assert_eq!(old, "\"e1\"");
            Some(Json::adopt("\"e2\""))
        });
        assert_eq!(changed.text(), r#"{"a":{"tail":1},"tail":"e2","z":12345678901234567890123}"#);
        assert_eq!(json.with_field("missing", |_| Some(Json::adopt("1"))), json);
        assert_eq!(Json::adopt("[1]").with_field("tail", |_| Some(Json::adopt("1"))).text(), "[1]");
    }

    proptest! {
        #[test]
        fn any_text_survives_in_a_value(key: String, text: String, number: f64) {
            let value = serde_json::json!({ key: [text, number] });
            let spaced = serde_json::to_string_pretty(&value).unwrap();
            let json: Json = serde_json::from_str(&spaced).unwrap();
            prop_assert_eq!(json.text(), value.to_string());
        }
    }

    #[test]
    fn long_strings_are_cut_and_everything_else_stays() {
        let json = Json::adopt(r#"{"a-long-name":"a-long-text","b":["\"\"\"\"\"\"","ünïcödé",12345678,{"c":null}]}"#);
        assert_eq!(
            json.shortened(4).text(),
            r#"{"a-long-name":"a-lo…","b":["\"\"\"\"…","ünïc…",12345678,{"c":null}]}"#
        );
        assert_eq!(json.shortened(11), json);
        assert_eq!(json.shortened(1000), json);
        // A pair of escapes is one character, and stays whole.
        let pairs = Json::adopt(r#"["\ud83d\ude00\ud83d\ude00\u00e9xyz"]"#);
        assert_eq!(pairs.shortened(2).text(), r#"["\ud83d\ude00\ud83d\ude00…"]"#);
        for chars in 0..20 {
            assert!(serde_json::from_str::<serde_json::Value>(pairs.shortened(chars).text()).is_ok(), "{chars}");
        }
    }
}
