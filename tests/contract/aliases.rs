//! Owns: short names in transcripts for minted values: `<s1>` and `<e1>` for ids, `<c1>` for cursors. Transcripts are
//! easier to read with them, and do not change when ids are derived in another way.

use uuid::Uuid;

const CURSOR_FIELD: &str = "\"next_cursor\":\"";

#[derive(Default)]
pub struct Aliases {
    /// Aliases and their values, in order of first use.
    known: Vec<(String, String)>,
}

impl Aliases {
    /// A line of the script with every alias replaced by its value. `<x*5>` is `xxxxx`.
    pub fn resolve(&self, line: &str) -> String {
        let mut resolved = String::new();
        let mut rest = line;
        while let Some((before, after)) = rest.split_once('<') {
            resolved.push_str(before);
            match after.split_once('>') {
                Some((inside, tail)) => {
                    resolved.push_str(&self.meaning(inside));
                    rest = tail;
                }
                None => {
                    resolved.push('<');
                    rest = after;
                }
            }
        }
        resolved + rest
    }

    fn meaning(&self, inside: &str) -> String {
        if let Some((text, Ok(times))) = inside.rsplit_once('*').map(|(text, times)| (text, times.parse::<usize>())) {
            return text.repeat(times);
        }
        let alias = format!("<{inside}>");
        self.known.iter().find(|(known, _)| *known == alias).map_or(alias.clone(), |(_, meaning)| meaning.clone())
    }

    /// Text with every minted value replaced by its alias.
    pub fn shorten(&mut self, text: &str) -> String {
        let mut shortened = String::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let (token, kind) = match rest.strip_prefix(CURSOR_FIELD) {
                Some(after) => {
                    shortened.push_str(CURSOR_FIELD);
                    rest = after;
                    (after.split('"').next(), 'c')
                }
                None => (minted(rest), next),
            };
            match token {
                Some(token) => {
                    shortened.push_str(&self.alias(token, kind));
                    rest = &rest[token.len()..];
                }
                None => {
                    shortened.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        shortened
    }

    fn alias(&mut self, token: &str, kind: char) -> String {
        if let Some((alias, _)) = self.known.iter().find(|(_, meaning)| meaning == token) {
            return alias.clone();
        }
        let count = self.known.iter().filter(|(alias, _)| alias.starts_with(&format!("<{kind}"))).count();
        let alias = format!("<{kind}{}>", count + 1);
        self.known.push((alias.clone(), token.to_owned()));
        alias
    }
}

/// The minted id that `text` starts with.
fn minted(text: &str) -> Option<&str> {
    const ID_LENGTH: usize = "s_".len() + 36;
    let id = text.get(..ID_LENGTH)?;
    let uuid = id.strip_prefix("s_").or_else(|| id.strip_prefix("e_"))?;
    Uuid::parse_str(uuid).ok().map(|_| id)
}
