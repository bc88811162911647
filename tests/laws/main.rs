//! The laws: what holds for every input and for every file of the house.
//!
//! `house` reads the source; `sequences` and `paths` run the machine over real stores (`workshop`). `model` is the plain
//! second opinion that `sequences` compares the machine with; it shares no logic with it.

mod house;
mod model;
mod paths;
mod sequences;
mod workshop;
