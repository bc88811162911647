//! Owns: reading an object whose tag decides which fields it has (`role`, `type`, `kind`).
//!
//! serde's own tagged enums copy the whole object into a tree before they look at the tag. That takes many times the
//! memory of its text and loses the path of errors. Here the fields before the tag are kept as text, and the fields
//! after it are read as they arrive.
//! Never: what the fields mean.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A type that is read from a tagged object.
pub trait Tagged<'de>: Sized {
    /// The name of the type, for errors.
    const NAME: &'static str;
    /// The field that holds the tag.
    const TAG: &'static str;
    /// The fields of all variants. Others are skipped.
    const FIELDS: &'static [&'static str];
    type Variant: Deserialize<'de>;

    /// Reads the other fields.
    fn read<D: Deserializer<'de>>(variant: Self::Variant, fields: D) -> Result<Self, D::Error>;
}

/// Deserialises a tagged type.
pub fn deserialize<'de, T: Tagged<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(TaggedVisitor(PhantomData))
}

struct TaggedVisitor<T>(PhantomData<T>);

impl<'de, T: Tagged<'de>> Visitor<'de> for TaggedVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "internally tagged enum {}", T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        // At most one per known field: what a client sends cannot make this list long.
        let mut early: Vec<(&'static str, &'de RawValue)> = Vec::new();
        loop {
            match map.next_key_seed(FieldName { tag: T::TAG, fields: T::FIELDS })? {
                None => return Err(Error::missing_field(T::TAG)),
                Some(None) => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(Some(name)) if name == T::TAG => break,
                Some(Some(name)) if early.iter().any(|(seen, _)| *seen == name) => {
                    return Err(Error::duplicate_field(name));
                }
                Some(Some(name)) => early.push((name, map.next_value()?)),
            }
        }
        let variant = map.next_value()?;
        T::read(variant, MapAccessDeserializer::new(Fields { early: early.into_iter(), now: None, late: map }))
    }
}

/// Reads a key: the tag, a known field, or `None`.
struct FieldName {
    tag: &'static str,
    fields: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("field identifier")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok([self.tag].iter().chain(self.fields).copied().find(|field| *field == name))
    }
}

/// The fields that came before the tag, then those that came after it.
struct Fields<'de, A> {
    early: std::vec::IntoIter<(&'static str, &'de RawValue)>,
    now: Option<(&'static str, &'de RawValue)>,
    late: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<'de, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.now = self.early.next();
        match self.now {
            Some((name, _)) => seed.deserialize(StrDeserializer::new(name)).map(Some),
            None => self.late.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        let Some((name, raw)) = self.now.take() else { return self.late.next_value_seed(seed) };
        parse_below(name, raw.get(), seed).map_err(Error::custom)
    }
}

/// Parses a part of a request on its own. `name` is its field in the object above, or empty for that object itself.
pub fn parse_below<'de, S: DeserializeSeed<'de>>(
    name: &'static str,
    text: &'de str,
    seed: S,
) -> Result<S::Value, Below> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let mut track = serde_path_to_error::Track::new();
    seed.deserialize(serde_path_to_error::Deserializer::new(&mut reader, &mut track)).map_err(|error| Below {
        name,
        path: track.path(),
        error,
    })
}

/// An error in a part that was parsed on its own. Its text starts with the path below the object above:
/// `.content[1].text: why`.
pub struct Below {
    name: &'static str,
    path: serde_path_to_error::Path,
    error: serde_json::Error,
}

impl fmt::Display for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.path.to_string() {
            root if root == "." => String::new(),
            items if items.starts_with('[') => items,
            fields => format!(".{fields}"),
        };
        let printed = self.error.to_string();
        // The line and column of the text of one field mean nothing to the caller.
        let why = printed.rsplit_once(" at line ").map_or(printed.as_str(), |(why, _)| why);
        let name = if self.name.is_empty() { String::new() } else { format!(".{}", self.name) };
        let below = format!("{name}{path}");
        let separator = if below.is_empty() { "" } else { separator(why) };
        write!(f, "{below}{separator}{why}")
    }
}

/// What goes between a path and an error below it, whose text may start with the rest of the path.
pub fn separator(why: &str) -> &'static str {
    if why.starts_with(['.', '[']) { "" } else { ": " }
}

/// Defines a tagged enum and implements `Deserialize` for it: the field `$tag` selects the variant, and each variant
/// has its own fields. The attributes must say `#[serde(tag = "$tag", rename_all = "snake_case")]` for `Serialize`.
macro_rules! tagged {
    (
        $(#[$about:meta])*
        pub enum $name:ident by $tag:ident {
            $($(#[$told:meta])* $variant:ident { $($(#[$how:meta])* $field:ident: $type:ty,)+ })+
        }
    ) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$told])* $variant { $($(#[$how])* $field: $type,)+ },)+
        }

        const _: () = {
            #[derive(serde::Deserialize)]
            #[serde(variant_identifier, rename_all = "snake_case")]
            pub enum Variant {
                $($variant,)+
            }

            impl<'de> $crate::machine::tagged::Tagged<'de> for $name {
                const NAME: &'static str = stringify!($name);
                const TAG: &'static str = stringify!($tag);
                const FIELDS: &'static [&'static str] = &[$($(stringify!($field),)+)+];
                type Variant = Variant;

                fn read<D: serde::Deserializer<'de>>(variant: Variant, fields: D) -> Result<$name, D::Error> {
                    match variant {
                        $(Variant::$variant => {
                            #[derive(serde::Deserialize)]
                            struct Fields {
                                $($(#[$how])* $field: $type,)+
                            }
                            let Fields { $($field),+ } = serde::Deserialize::deserialize(fields)?;
                            Ok($name::$variant { $($field),+ })
                        })+
                    }
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                    $crate::machine::tagged::deserialize(deserializer)
                }
            }
        };
    };
}

pub(super) use tagged;
