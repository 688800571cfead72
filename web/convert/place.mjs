// Pure: finds a place for a new node beside another.

const TITLE = 30
const GAP = 40
const MARGIN = 10
const TRIES = 40 // places above, and as many below
const OUTSIDE = 1000 // a place outside of the group counts as so much farther
const OVERLAP = 1000 // a pixel that is covered counts as so much farther

const makeBox = ({ pos, size }) => ({ x: pos[0], y: pos[1] - TITLE, width: size[0], height: size[1] + TITLE })

/** Returns a node's box with its title. A collapsed node has little else. */
const boxOf = ({ pos, size, flags }) => makeBox({ pos, size: flags?.collapsed ? [size[0], 0] : size })

const overlap = (one, other) => {
  const side = (start, length) =>
    Math.max(0, Math.min(one[start] + one[length], other[start] + other[length]) - Math.max(one[start], other[start]))
  return side('x', 'width') * side('y', 'height')
}

const hasCenter = (group, { x, y, width, height }) => {
  const [left, top] = group.pos
  const [across, down] = [x + width / 2 - left, y + height / 2 - top]
  return across > 0 && across < group.size[0] && down > 0 && down < group.size[1]
}

/**
 * Returns the position for a node of this size, right of another or else near to it, where it covers no other node if
 * that can be, and preferably in the same groups. others: the nodes around. groups: the graph's.
 */
export function findPlace(node, size, others, groups) {
  const home = boxOf(node)
  const [left, top] = [home.x, home.y + TITLE]
  const right = left + home.width + GAP
  const steps = Array.from({ length: 2 * TRIES + 1 }, (_, at) => top + (at % 2 ? GAP : -GAP) * Math.ceil(at / 2))
  const positions = [right, left].flatMap((x) => steps.map((y) => [x, y]))
  const boxes = others.map(boxOf)
  const around = groups.filter((group) => hasCenter(group, home))
  const rate = (pos) => {
    const box = makeBox({ pos: pos.map((side) => side - MARGIN), size: size.map((side) => side + 2 * MARGIN) })
    const covered = boxes.reduce((sum, other) => sum + overlap(box, other), 0)
    const isOutside = around.some((group) => !hasCenter(group, box))
    return covered * OVERLAP + Math.abs(pos[0] - right) + Math.abs(pos[1] - top) + (isOutside ? OUTSIDE : 0)
  }
  return positions.reduce((best, pos) => (rate(pos) < rate(best) ? pos : best))
}
