//! Who owns a UDP port.
