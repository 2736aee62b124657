// Package guest is the control plane's end of the wire to the guests of its
// sandboxes. Its sub-packages are the link (how bytes get there), the wire (what
// they mean), and the guest itself: pid1 and keeper.
//
// A Fleet keeps one multiplexed connection per sandbox, opens it on the first
// call, and closes it when no call was open for a while. A call whose connection
// breaks is made again, once, on a new one: every call may take effect no more
// than once however often it is made. Then it fails with
// control.ErrGuestUnreachable, as does one that cannot dial.
//
// What a guest says is untrusted: it is bounded as it is read, checked and cut
// to what makes sense before anybody else sees it.
package guest
