// The one line that a loader shows of its automatic plan. All else that is known stands in its tooltip, and in the panel.

import { element } from '../elements.mjs'
import { draw } from '../plan/view.mjs'
import { summarizeError, t } from '../text.mjs'
import { describeLine } from './brief.mjs'

/** Replaces what the element shows. answer: the server's, or null. parts: makes the tooltip's elements, see `draw`. */
export function drawLine(target, answer, parts) {
  const line = answer && describeLine(answer, summarizeError, t)
  if (!line) return target.replaceChildren()
  const words = element('div')
  draw(words, answer, [], parts)
  target.replaceChildren(makeLine(line, listLines(words).join('\n')))
}

/** Says that there is no answer. */
export function drawNoLine(target, reason) {
  const text = t('plan.unanswered', { reason })
  target.replaceChildren(makeLine({ text, mark: null }, text))
}

function makeLine({ text, mark }, title) {
  const line = element('div', { class: 'paralleldit-plan-line', title, 'data-testid': 'paralleldit-plan-line' })
  if (mark) {
    line.dataset.mark = mark
    line.append(element('i', { class: 'pi pi-exclamation-triangle', 'aria-hidden': 'true' }))
  }
  line.append(element('span', {}, text))
  return line
}

/** Lists the texts of the innermost elements, as lines. */
const listLines = (target) =>
  target.childElementCount ? [...target.children].flatMap(listLines) : target.textContent ? [target.textContent] : []
