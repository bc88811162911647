//! Owns: sections, neighbouring entries of a path that are read, kept and printed together. A page of a transcript then
//! costs a few lookups and not one per entry.
//! Reads: View. Never: how long a section is kept. A store keeps it as long as none of its entries changes.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::entry::Entry;
use super::ids::{EntryId, SessionId};
use super::refusal::Fault;
use super::view::View;

/// The entries of a whole section. A section begins at a depth that is a multiple of it. With fewer, a page has more
/// parts; with more, an append to a transcript that is read all the time makes its readers print more entries again.
pub const ENTRIES: u64 = 64;

/// Longer bodies are read entry by entry. A page reads at most nine sections, so this bounds what it reads.
const BODIES_BYTES_MAX: usize = 1 << 20;

/// About how much memory an entry takes beside its body, here and in the printed text.
const OVERHEAD_BYTES: usize = 400;

/// Entries of one path, oldest first, each the parent of the next.
#[derive(Debug)]
pub struct Section {
    entries: Vec<Entry>,
    printed: OnceLock<Printed>,
    weight: usize,
}

/// The JSON texts of the entries, separated by commas.
#[derive(Debug)]
struct Printed {
    text: Bytes,
    /// The end of each text.
    ends: Vec<usize>,
}

/// The number of the section that has the entries of this depth.
pub fn number(depth: u64) -> u64 {
    depth / ENTRIES
}

/// The depths of a section.
pub fn depths(number: u64) -> Range<u64> {
    number * ENTRIES..(number + 1) * ENTRIES
}

impl Section {
    /// Entries that are not kept together.
    pub fn of(entries: Vec<Entry>) -> Section {
        let weight = entries.iter().map(|entry| OVERHEAD_BYTES + 2 * bytes(entry)).sum();
        Section { entries, printed: OnceLock::new(), weight }
    }

    /// Reads the section that ends with this entry, at this depth: the entry and its ancestors, as far as they are in the
    /// same section. `None` if their bodies are too long, or if one has another place: then a path is read entry by entry.
    pub fn read(view: &dyn View, session_id: &SessionId, end: &EntryId, depth: u64) -> Result<Option<Section>, Fault> {
        let first = depths(number(depth)).start;
        let mut entries = Vec::with_capacity((depth - first + 1) as usize);
        let (mut next, mut body_bytes) = (Some(end.clone()), 0);
        for depth in (first..=depth).rev() {
            let Some(id) = next else { return Ok(None) };
            let Some(entry) = view.entry(session_id, &id)? else { return Ok(None) };
            body_bytes += bytes(&entry);
            if entry.place.as_ref().is_none_or(|place| place.depth != depth) || body_bytes > BODIES_BYTES_MAX {
                return Ok(None);
            }
            next = entry.parent_id.clone();
            entries.push(entry);
        }
        entries.reverse();
        Ok(Some(Section::of(entries)))
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// About how much memory it takes once it is printed.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// The texts of some of its entries, separated by commas. All are printed when half of them are asked for. `None` if
    /// these are fewer, and nothing is printed yet. There is one form of an entry that is printed this way, so `print` is
    /// always the same.
    pub fn printed(&self, part: Range<usize>, print: fn(&mut String, &Entry)) -> Option<Bytes> {
        let last = part.end.checked_sub(1).filter(|_| part.start < part.end)?;
        let Printed { text, ends } = match 2 * part.len() >= self.entries.len() {
            true => self.printed.get_or_init(|| Printed::of(&self.entries, print)),
            false => self.printed.get()?,
        };
        let start = part.start.checked_sub(1).map_or(0, |before| ends[before] + 1);
        Some(text.slice(start..ends[last]))
    }
}

impl Printed {
    fn of(entries: &[Entry], print: fn(&mut String, &Entry)) -> Printed {
        let size = entries.iter().map(|entry| OVERHEAD_BYTES / 4 + bytes(entry)).sum();
        let (mut text, mut ends) = (String::with_capacity(size), Vec::with_capacity(entries.len()));
        for (at, entry) in entries.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            print(&mut text, entry);
            ends.push(text.len());
        }
        Printed { text: text.into(), ends }
    }
}

fn bytes(entry: &Entry) -> usize {
    entry.body.bytes() + entry.origin.as_ref().map_or(0, |origin| origin.text().len())
}

/// Neighbours within one section.
#[derive(Debug, Clone)]
pub struct Part {
    pub section: Arc<Section>,
    pub range: Range<usize>,
}

impl Part {
    pub fn entries(&self) -> &[Entry] {
        &self.section.entries[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::entry::Body;
    use crate::machine::json::Json;

    fn entry(id: &str) -> Entry {
        let body = Body::Custom { custom_type: "c".to_owned(), data: Json::adopt("1") };
        Entry { id: id.into(), parent_id: None, timestamp: 1, revision: 0, origin: None, body, place: None }
    }

    #[test]
    fn a_part_is_printed_as_if_it_were_printed_alone() {
        let section = Section::of(["a", "bb", "", "dddd"].map(entry).into());
        let print: fn(&mut String, &Entry) = |out, entry| out.push_str(entry.id.as_str());
        assert_eq!(section.printed(3..4, print), None, "one of four is not worth it");
        assert_eq!(section.printed(0..2, print).as_deref(), Some(&b"a,bb"[..]));
        for start in 0..4 {
            for end in start + 1..=4 {
                let alone: Vec<&str> = section.entries[start..end].iter().map(|entry| entry.id.as_str()).collect();
                let printed = section.printed(start..end, print);
                assert_eq!(printed.as_deref(), Some(alone.join(",").as_bytes()), "{start}..{end}");
            }
        }
        assert_eq!(section.printed(2..2, print), None);
    }

    #[test]
    fn every_depth_is_in_the_section_of_its_number() {
        for depth in [0, 1, ENTRIES - 1, ENTRIES, 10 * ENTRIES + 1] {
            assert!(depths(number(depth)).contains(&depth));
        }
    }
}
