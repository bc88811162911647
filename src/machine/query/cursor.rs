//! Owns: page cursors. Opaque to callers; they say where the last page ended and which query it belonged to.

use crate::machine::ids::{EntryId, SessionId};
use crate::machine::refusal::Refusal;
use crate::machine::view::{ListOrder, ListPoint};

/// `m.<hex entry id>`: the last entry of the page.
pub fn print_messages(entry_id: &EntryId) -> String {
    format!("m.{}", hex(entry_id.as_str()))
}

pub fn parse_messages(cursor: &str) -> Result<EntryId, Refusal> {
    let entry_id = cursor.strip_prefix("m.").and_then(unhex);
    entry_id.map(EntryId::from).ok_or_else(|| malformed("session::messages"))
}

/// `t.<hex entry id>`: the last entry of the page.
pub fn print_tree(entry_id: &EntryId) -> String {
    format!("t.{}", hex(entry_id.as_str()))
}

pub fn parse_tree(cursor: &str) -> Result<EntryId, Refusal> {
    let entry_id = cursor.strip_prefix("t.").and_then(unhex);
    entry_id.map(EntryId::from).ok_or_else(|| malformed("session::tree"))
}

/// `l.<order>.<time>.<hex session id>`: the last session of the page, in the order of the list.
pub fn print_list(order: ListOrder, point: &ListPoint) -> String {
    format!("l.{}.{}.{}", order_name(order), point.time, hex(point.session_id.as_str()))
}

pub fn parse_list(cursor: &str, order: ListOrder) -> Result<ListPoint, Refusal> {
    let mut parts = cursor.splitn(4, '.');
    let (Some("l"), Some(name), Some(time), Some(id)) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(malformed("session::list"));
    };
    let (Ok(time), Some(id)) = (time.parse(), unhex(id)) else { return Err(malformed("session::list")) };
    if name != order_name(order) {
        let wanted = order_name(order);
        let why = format!("cursor belongs to order {name:?}, the request asks for {wanted:?}: start without a cursor");
        return Err(Refusal::CursorInvalid(why));
    }
    Ok(ListPoint { time, session_id: SessionId::from(id) })
}

/// Where a page of an export starts: in the path to a leaf, or in the entries off it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportPoint {
    /// The active leaf when the export began.
    pub leaf: Option<EntryId>,
    pub on_path: bool,
    /// The last entry of the page before.
    pub after: Option<EntryId>,
}

/// `x.<path or branches>.<hex leaf>.<hex entry id>`; what there is none of is empty, as no entry's id is.
pub fn print_export(point: &ExportPoint) -> String {
    let stage = if point.on_path { "path" } else { "branches" };
    let text = |id: &Option<EntryId>| hex(id.as_ref().map_or("", EntryId::as_str));
    format!("x.{stage}.{}.{}", text(&point.leaf), text(&point.after))
}

pub fn parse_export(cursor: &str) -> Result<ExportPoint, Refusal> {
    let mut parts = cursor.splitn(4, '.');
    let (Some("x"), Some(stage), Some(leaf), Some(after)) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed("session::export"));
    };
    let on_path = match stage {
        "path" => true,
        "branches" => false,
        _ => return Err(malformed("session::export")),
    };
    let id = |text: &str| Some(unhex(text)?).map(|id| Some(id).filter(|id| !id.is_empty()).map(EntryId::from));
    let (Some(leaf), Some(after)) = (id(leaf), id(after)) else { return Err(malformed("session::export")) };
    Ok(ExportPoint { leaf, on_path, after })
}

fn order_name(order: ListOrder) -> &'static str {
    match order {
        ListOrder::CreatedAsc => "created_asc",
        ListOrder::CreatedDesc => "created_desc",
        ListOrder::UpdatedDesc => "updated_desc",
    }
}

fn malformed(function: &str) -> Refusal {
    Refusal::CursorInvalid(format!("cursor is not one that {function} returned"))
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<String> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok());
    String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_any_unicode_id() {
        for id in ["", "e_1", "../escape/chat 42:?", "🦀.\u{0}"] {
            let entry_id = EntryId::from(id);
            assert_eq!(parse_messages(&print_messages(&entry_id)).unwrap(), entry_id);
            let point = ListPoint { time: -5, session_id: SessionId::from(id) };
            let printed = print_list(ListOrder::CreatedAsc, &point);
            assert_eq!(parse_list(&printed, ListOrder::CreatedAsc).unwrap(), point);
        }
    }

    #[test]
    fn a_cursor_of_another_order_or_shape_is_refused() {
        let point = ListPoint { time: 5, session_id: SessionId::from("a") };
        let printed = print_list(ListOrder::CreatedAsc, &point);
        assert!(parse_list(&printed, ListOrder::UpdatedDesc).is_err());
        for garbage in
            ["", "l", "l.created_asc", "l.created_asc.x.61", "l.created_asc.5.6", "m.61", "m.zz", "l.created_asc.5.é1"]
        {
            assert!(parse_list(garbage, ListOrder::CreatedAsc).is_err(), "{garbage}");
        }
        for garbage in ["", "m", "m.6", "m.ff", "e_1", "l.created_asc.5.61"] {
            assert!(parse_messages(garbage).is_err(), "{garbage}");
        }
    }
}
