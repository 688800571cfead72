// A run's steps as bars: how long each took, the part of it that was communication below.
// `bars` is pure; `Timeline` draws.

import { svg } from '../elements.js'
import { attribute, text } from './dom.js'

const HEIGHT = 40
const SLOT = 10
const GAP = 1.5
const DENSE = 80 // slots, from which on the bars are too thin for gaps between them
const MOST_SLOTS = 500 // as many steps of a run as the server keeps
const LEAST_SLOTS = 12 // so that a run of few steps has no broad blocks
const CLIP = 2 // medians; what took longer, as the first step often does, is cut off there

/**
 * Bars of the steps, each [seconds, seconds of it in communication]: heights as shares of the drawing's.
 *
 * total: how many steps there will be, or null. first: the number of the first of these steps.
 */
export function bars(steps, total, first = 1) {
  const lengths = steps.map(([length]) => length).sort((a, b) => a - b)
  const longest = Math.min(lengths.at(-1) ?? 0, CLIP * (lengths[lengths.length >> 1] ?? 0)) || 1
  const slots = Math.max(steps.length, first === 1 ? Math.min(total ?? 0, MOST_SLOTS) : 0, LEAST_SLOTS)
  const drawn = steps.map(([length, waiting], at) => {
    const height = Math.min(length / longest, 1)
    const share = length > 0 ? Math.min(waiting / length, 1) : 0
    return { number: first + at, length, waiting, height, below: height * share, cut: length > longest }
  })
  return { slots, bars: drawn }
}

/** The drawing of one run. t: the texts; format: how seconds and shares are shown. */
export class Timeline {
  constructor(t, format) {
    this.t = t
    this.format = format
    this.element = svg('svg', { class: 'paralleldit-timeline', role: 'img', preserveAspectRatio: 'none' })
    this.drawn = []
  }

  /** label: what the drawing says, for those who do not see it. */
  update(run, label) {
    const first = run.made - run.steps.length + 1 // of a long run, the server keeps the last ones
    const { slots, bars: wanted } = bars(run.steps, run.total, first)
    attribute(this.element, 'viewBox', `0 0 ${slots * SLOT} ${HEIGHT}`)
    attribute(this.element, 'aria-label', label)
    while (this.drawn.length > wanted.length) this.drawn.pop().element.remove()
    while (this.drawn.length < wanted.length) this.drawn.push(this.addBar(this.drawn.length))
    const gap = slots < DENSE ? GAP : 0
    attribute(this.element, 'shape-rendering', gap ? 'auto' : 'crispEdges')
    for (const [at, bar] of wanted.entries()) this.draw(this.drawn[at], bar, at * SLOT + gap / 2, SLOT - gap)
  }

  addBar(at) {
    const x = at * SLOT
    const parts = {
      title: svg('title'),
      compute: svg('rect', { class: 'paralleldit-compute' }),
      communication: svg('rect', { class: 'paralleldit-communication' }),
      cut: svg('rect', { class: 'paralleldit-cut', x, width: SLOT, y: 4, height: 3 })
    }
    const whole = svg('rect', { class: 'paralleldit-hit', x, width: SLOT, y: 0, height: HEIGHT })
    const element = svg('g', {}, parts.title, whole, parts.compute, parts.communication, parts.cut)
    this.element.append(element)
    return { element, ...parts }
  }

  draw(parts, bar, x, width) {
    const { seconds } = this.format
    const values = { step: bar.number, length: seconds(bar.length), waiting: seconds(bar.waiting) }
    text(parts.title, this.t('panel.barTitle', values))
    place(parts.compute, x, width, HEIGHT * (1 - bar.height), HEIGHT * (bar.height - bar.below))
    place(parts.communication, x, width, HEIGHT * (1 - bar.below), HEIGHT * bar.below)
    attribute(parts.cut, 'visibility', bar.cut ? 'visible' : 'hidden')
  }
}

function place(rectangle, x, width, y, height) {
  attribute(rectangle, 'x', x)
  attribute(rectangle, 'width', width)
  attribute(rectangle, 'y', y.toFixed(2))
  attribute(rectangle, 'height', Math.max(0, height).toFixed(2))
}
