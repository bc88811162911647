//! Owns: the text form of a position, `<cluster tag>.<group>.<index>.<ordinal>`. Clients store it and send it back.
//! Never: what is stored at a position.

use std::sync::Arc;

use super::errors::ResumeError;
use crate::machine::ids::Position;

/// Stands for the position from which everything stored can be read.
pub const OLDEST: &str = "oldest";

/// Distinguishes positions of one cluster from those of another, so that a position is never resumed in another log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterTag(Arc<str>);

impl ClusterTag {
    /// Keeps letters, digits, `-` and `_`, because the dot separates the fields.
    pub fn new(name: &str) -> ClusterTag {
        let clean: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
        ClusterTag(if clean.is_empty() { "node".into() } else { clean.into() })
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    pub fn print(&self, position: Position) -> String {
        format!("{}.{}.{}.{}", self.0, position.group, position.index, position.ordinal)
    }

    /// Reads a position of this cluster.
    pub fn parse(&self, text: &str) -> Result<Position, ResumeError> {
        let malformed = || ResumeError::Malformed { text: text.to_owned() };
        let mut fields = text.split('.');
        let (Some(tag), Some(group), Some(index), Some(ordinal), None) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(malformed());
        };
        let position = Position {
            group: group.parse().map_err(|_| malformed())?,
            index: index.parse().map_err(|_| malformed())?,
            ordinal: ordinal.parse().map_err(|_| malformed())?,
        };
        if tag != &*self.0 {
            let (text, cluster, here) = (text.to_owned(), tag.to_owned(), self.0.to_string());
            return Err(ResumeError::OtherCluster { text, cluster, here });
        }
        Ok(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_its_text() {
        let tag = ClusterTag::new("c 1.x");
        let position = Position { group: 3, index: u64::MAX, ordinal: 7 };
        assert_eq!(tag.print(position), "c1x.3.18446744073709551615.7");
        assert_eq!(tag.parse(&tag.print(position)), Ok(position));
    }

    #[test]
    fn a_bad_position_is_explained() {
        let tag = ClusterTag::new("here");
        for text in ["", "here", "here.1.2", "here.1.2.3.4", "here.x.2.3", "here.1.-2.3", "here.1.2.3 "] {
            assert!(tag.parse(text).unwrap_err().to_string().contains("is not a position"), "{text}");
        }
        assert!(tag.parse("there.0.1.0").unwrap_err().to_string().contains("belongs to cluster `there`"));
    }
}
